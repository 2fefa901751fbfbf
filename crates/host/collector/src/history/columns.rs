//! Columns to Parquet: a file of one group of rows, compressed with Snappy.

use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

/// A column of a table.
#[derive(Debug)]
pub(super) struct TableColumn {
    name: &'static str,
    values: ColumnValues,
    shape: RowShape,
}

/// Values one after the other, as Parquet has them.
#[derive(Debug)]
enum ColumnValues {
    Flags(Vec<bool>),
    Ranks(Vec<i32>),
    Whole(Vec<i64>),
    Times(Vec<i64>),
    Numbers(Vec<f64>),
    Texts(Vec<ByteArray>),
}

/// Which rows they belong to.
#[derive(Debug)]
enum RowShape {
    /// One to each.
    Required,
    /// At most one to each: 1 where there is one.
    Optional(Vec<i16>),
    /// Any number to each: 0 where there is none, else 1; and 0 at the first of each row.
    List(Vec<i16>, Vec<i16>),
}

impl TableColumn {
    pub(super) fn flags(name: &'static str, rows: impl Iterator<Item = bool>) -> Self {
        Self {
            name,
            values: ColumnValues::Flags(rows.collect()),
            shape: RowShape::Required,
        }
    }

    pub(super) fn whole(name: &'static str, rows: impl Iterator<Item = u64>) -> Self {
        // Steps and counts: far below where the sign would be lost.
        let values = ColumnValues::Whole(rows.map(u64::cast_signed).collect());
        Self {
            name,
            values,
            shape: RowShape::Required,
        }
    }

    pub(super) fn numbers(name: &'static str, rows: impl Iterator<Item = f64>) -> Self {
        Self {
            name,
            values: ColumnValues::Numbers(rows.collect()),
            shape: RowShape::Required,
        }
    }

    pub(super) fn ranks(name: &'static str, rows: impl Iterator<Item = u32>) -> Self {
        let values = ColumnValues::Ranks(rows.map(u32::cast_signed).collect());
        Self {
            name,
            values,
            shape: RowShape::Required,
        }
    }

    /// Moments in seconds since 1970; null where there is none.
    pub(super) fn times(name: &'static str, rows: impl Iterator<Item = Option<f64>>) -> Self {
        // In microseconds: a float of seconds since 1970 has no finer ones.
        let (levels, values) = optional(rows.map(|s| s.map(|s| (s * 1e6) as i64)));
        Self {
            name,
            values: ColumnValues::Times(values),
            shape: RowShape::Optional(levels),
        }
    }

    /// Null where there is none.
    pub(super) fn texts<'a>(
        name: &'static str,
        rows: impl Iterator<Item = Option<&'a str>>,
    ) -> Self {
        let (levels, values) = optional(rows.map(|text| text.map(ByteArray::from)));
        Self {
            name,
            values: ColumnValues::Texts(values),
            shape: RowShape::Optional(levels),
        }
    }

    pub(super) fn rank_lists<'a>(
        name: &'static str,
        rows: impl Iterator<Item = &'a [u32]>,
    ) -> Self {
        let (shape, values) = list(rows.map(|ranks| ranks.iter().map(|rank| rank.cast_signed())));
        Self {
            name,
            values: ColumnValues::Ranks(values),
            shape,
        }
    }

    pub(super) fn text_lists<'a, Row: Iterator<Item = &'a str>>(
        name: &'static str,
        rows: impl Iterator<Item = Row>,
    ) -> Self {
        let (shape, values) = list(rows.map(|texts| texts.map(ByteArray::from)));
        Self {
            name,
            values: ColumnValues::Texts(values),
            shape,
        }
    }

    fn schema(&self) -> Result<Arc<Type>, ParquetError> {
        let (physical, logical) = match &self.values {
            ColumnValues::Flags(_) => (Physical::BOOLEAN, None),
            ColumnValues::Ranks(_) => (Physical::INT32, None),
            ColumnValues::Whole(_) => (Physical::INT64, None),
            ColumnValues::Times(_) => (
                Physical::INT64,
                Some(LogicalType::timestamp(true, TimeUnit::MICROS)),
            ),
            ColumnValues::Numbers(_) => (Physical::DOUBLE, None),
            ColumnValues::Texts(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let (name, repetition) = match self.shape {
            RowShape::Required => (self.name, Repetition::REQUIRED),
            RowShape::Optional(_) => (self.name, Repetition::OPTIONAL),
            RowShape::List(..) => ("element", Repetition::REQUIRED),
        };
        let values = Type::primitive_type_builder(name, physical)
            .with_repetition(repetition)
            .with_logical_type(logical)
            .build()
            .map(Arc::new)?;
        if !matches!(self.shape, RowShape::List(..)) {
            return Ok(values);
        }
        // The three levels that readers take for a list.
        let items = Type::group_type_builder("list")
            .with_repetition(Repetition::REPEATED)
            .with_fields(vec![values])
            .build()?;
        Type::group_type_builder(self.name)
            .with_repetition(Repetition::REQUIRED)
            .with_logical_type(Some(LogicalType::List))
            .with_fields(vec![Arc::new(items)])
            .build()
            .map(Arc::new)
    }

    fn write(
        &self,
        group: &mut SerializedRowGroupWriter<'_, &mut Vec<u8>>,
    ) -> Result<(), ParquetError> {
        match &self.values {
            ColumnValues::Flags(values) => self.put::<BoolType>(group, values),
            ColumnValues::Ranks(values) => self.put::<Int32Type>(group, values),
            ColumnValues::Whole(values) | ColumnValues::Times(values) => {
                self.put::<Int64Type>(group, values)
            }
            ColumnValues::Numbers(values) => self.put::<DoubleType>(group, values),
            ColumnValues::Texts(values) => self.put::<ByteArrayType>(group, values),
        }
    }

    fn put<T: DataType>(
        &self,
        group: &mut SerializedRowGroupWriter<'_, &mut Vec<u8>>,
        values: &[T::T],
    ) -> Result<(), ParquetError> {
        let (present, begins) = match &self.shape {
            RowShape::Required => (None, None),
            RowShape::Optional(present) => (Some(present.as_slice()), None),
            RowShape::List(present, begins) => (Some(present.as_slice()), Some(begins.as_slice())),
        };
        if let Some(mut column) = group.next_column()? {
            column.typed::<T>().write_batch(values, present, begins)?;
            column.close()?;
        }
        Ok(())
    }
}

fn optional<T>(rows: impl Iterator<Item = Option<T>>) -> (Vec<i16>, Vec<T>) {
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    for row in rows {
        levels.push(i16::from(row.is_some()));
        values.extend(row);
    }
    (levels, values)
}

fn list<T, Row: Iterator<Item = T>>(rows: impl Iterator<Item = Row>) -> (RowShape, Vec<T>) {
    let (mut present, mut begins, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let before = values.len();
        values.extend(row);
        // A row without values still has a level.
        let length = values.len() - before;
        present.extend(std::iter::repeat_n(i16::from(length > 0), length.max(1)));
        begins.extend((0..length.max(1)).map(|at| i16::from(at > 0)));
    }
    (RowShape::List(present, begins), values)
}

/// The bytes of a file with these columns, all of them as long.
pub(super) fn write(columns: &[TableColumn]) -> Result<Vec<u8>, ParquetError> {
    let fields = columns
        .iter()
        .map(TableColumn::schema)
        .collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder("schema")
        .with_fields(fields)
        .build()?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by("laggard".to_owned());
    let mut bytes = Vec::new();
    let mut file =
        SerializedFileWriter::new(&mut bytes, Arc::new(schema), Arc::new(properties.build()))?;
    let mut group = file.next_row_group()?;
    for column in columns {
        column.write(&mut group)?;
    }
    group.close()?;
    file.close()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::{Field, Row, RowAccessor};
    use proptest::prelude::*;

    use super::*;

    fn row() -> impl Strategy<Value = (Option<String>, Vec<u32>, Vec<String>, f64)> {
        let ranks = prop::collection::vec(0..1_u32 << 17, 0..4);
        let texts = prop::collection::vec(".{0,3}", 0..3);
        (prop::option::of(".{0,5}"), ranks, texts, -1e9..1e9_f64)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(rows in prop::collection::vec(row(), 0..40)) {
            let columns = [
                TableColumn::texts("text", rows.iter().map(|row| row.0.as_deref())),
                TableColumn::rank_lists("ranks", rows.iter().map(|row| row.1.as_slice())),
                TableColumn::text_lists(
                    "texts",
                    rows.iter().map(|row| row.2.iter().map(String::as_str)),
                ),
                TableColumn::times("at", rows.iter().map(|row| Some(row.3))),
                TableColumn::flags("flag", rows.iter().map(|row| row.3 > 0.0)),
                TableColumn::whole("whole", rows.iter().map(|row| u64::from(row.3 < 0.0))),
                TableColumn::numbers("number", rows.iter().map(|row| row.3)),
            ];
            let file = axum::body::Bytes::from(write(&columns).unwrap());
            let reader = SerializedFileReader::new(file).unwrap();
            let found = reader.get_row_iter(None).unwrap().map(Result::unwrap);
            let found: Vec<Row> = found.collect();
            prop_assert_eq!(found.len(), rows.len());
            for (row, (text, ranks, texts, number)) in found.iter().zip(&rows) {
                let field = row.get_column_iter().next().unwrap().1;
                let expected = text.clone().map_or(Field::Null, Field::Str);
                prop_assert_eq!(field, &expected);
                let known: Vec<Field> =
                    ranks.iter().map(|rank| Field::Int(rank.cast_signed())).collect();
                prop_assert_eq!(row.get_list(1).unwrap().elements(), &known[..]);
                let known: Vec<Field> = texts.iter().cloned().map(Field::Str).collect();
                prop_assert_eq!(row.get_list(2).unwrap().elements(), &known[..]);
                prop_assert_eq!(row.get_timestamp_micros(3).unwrap(), (number * 1e6) as i64);
                prop_assert_eq!(row.get_bool(4).unwrap(), *number > 0.0);
                prop_assert_eq!(row.get_long(5).unwrap(), i64::from(*number < 0.0));
                prop_assert_eq!(row.get_double(6).unwrap(), *number);
            }
        }
    }
}
