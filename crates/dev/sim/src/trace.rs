//! A pipeline's what-if trace as a file.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use whatif::Row;

use crate::Pipeline;

impl Pipeline {
    /// Its steps as a what-if trace, with the columns of the published ones.
    ///
    /// Times are written as `f32`; their ends are not written.
    ///
    /// # Panics
    /// If the writer refuses its own columns.
    pub fn trace(&self) -> Vec<u8> {
        let mut trace = Vec::new();
        write(&self.rows(), &mut trace).expect("memory takes all");
        trace
    }

    /// What stands beside it: the layout, in YAML.
    ///
    /// # Panics
    /// Never: it is a few numbers.
    pub fn meta(&self) -> String {
        yaml_serde::to_string(&self.layout()).expect("numbers are YAML")
    }
}

fn write(rows: &[Row], to: impl Write + Send) -> Result<(), ParquetError> {
    let (number, seconds) = (Physical::INT32, Physical::FLOAT);
    let columns = [
        ("dp_rank", number),
        ("stage", number),
        ("rank", number),
        ("step", Physical::INT64),
        ("optype", Physical::BYTE_ARRAY),
        ("start_ts", seconds),
        ("duration", seconds),
        ("seq_id", number),
        ("mc", number),
        ("mb_id", number),
        ("gmc", number),
    ];
    let fields = columns
        .into_iter()
        .map(|(name, physical)| {
            let is_text = physical == Physical::BYTE_ARRAY;
            Type::primitive_type_builder(name, physical)
                .with_repetition(Repetition::REQUIRED)
                .with_logical_type(is_text.then_some(LogicalType::String))
                .build()
                .map(Arc::new)
        })
        .collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder("schema")
        .with_fields(fields)
        .build()?;
    // As in the published traces.
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
    let mut file = SerializedFileWriter::new(to, Arc::new(schema), Arc::new(properties.build()))?;
    let mut group = file.next_row_group()?;
    let mut put = TraceColumns {
        rows,
        group: &mut group,
    };
    // The writer hands out columns in the order of the schema: these calls keep it.
    put.column::<Int32Type>(|row| row.dp_rank.cast_signed())?;
    put.column::<Int32Type>(|row| row.stage.cast_signed())?;
    put.column::<Int32Type>(|row| row.rank.cast_signed())?;
    put.column::<Int64Type>(|row| row.step.cast_signed())?;
    put.column::<ByteArrayType>(|row| ByteArray::from(row.kind.name()))?;
    put.column::<FloatType>(|row| row.start_s as f32)?;
    put.column::<FloatType>(|row| row.duration_s as f32)?;
    put.column::<Int32Type>(|row| row.number.cast_signed())?;
    put.column::<Int32Type>(|row| row.chunk)?;
    put.column::<Int32Type>(|row| row.microbatch)?;
    put.column::<Int32Type>(|row| row.global_chunk)?;
    group.close()?;
    file.close()?;
    Ok(())
}

struct TraceColumns<'a, 'file, W: Write> {
    rows: &'a [Row],
    group: &'a mut SerializedRowGroupWriter<'file, W>,
}

impl<W: Write + Send> TraceColumns<'_, '_, W> {
    fn column<T: DataType>(&mut self, value: impl Fn(&Row) -> T::T) -> Result<(), ParquetError> {
        let values: Vec<T::T> = self.rows.iter().map(value).collect();
        if let Some(mut column) = self.group.next_column()? {
            // Every column is required, so no levels of definition or repetition go with the
            // values.
            column.typed::<T>().write_batch(&values, None, None)?;
            column.close()?;
        }
        Ok(())
    }
}
