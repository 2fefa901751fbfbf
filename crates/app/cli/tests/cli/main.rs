//! The command, as its users run it.

mod analyze;
mod calls;
mod compare;
mod contradictions;
mod doctor;
mod export;
mod foreign_traces;
mod hangs;
mod meetings;
mod nccl;
mod requests;
mod service;
mod traces;
mod what_if;
