//! Enums that list their variants, so that no second list has to follow them.

/// Adds `ALL`, all variants in their order, to the enum inside.
macro_rules! listed {
    ($(#[$about:meta])* pub enum $name:ident {
        $($(#[$doc:meta])* $kind:ident $(= $number:literal)?,)*
    }) => {
        $(#[$about])*
        pub enum $name { $($(#[$doc])* $kind $(= $number)?,)* }

        impl $name {
            /// All of them, in order.
            // Macros cannot count: the length of a list of names can.
            pub const ALL: [Self; [$(stringify!($kind)),*].len()] = [$(Self::$kind),*];
        }
    };
}

pub(crate) use listed;
