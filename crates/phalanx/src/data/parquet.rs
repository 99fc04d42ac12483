//! Documents of a Parquet file: the strings of one column. Read by a build with the feature `parquet`; without it the file
//! is refused with what to do.

use std::path::Path;

use super::DataError;
use super::records::Document;

/// Takes a document, or stops with an error.
pub(super) type TakeDocument<'a> = dyn FnMut(Document) -> Result<(), DataError> + 'a;

/// Hands the strings of a column to `take`, row by row; rows without one are left out.
#[cfg(feature = "parquet")]
pub(super) fn each_document(path: &Path, column: &str, take: &mut TakeDocument<'_>) -> Result<(), DataError> {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use parquet::file::reader::SerializedFileReader;
    let file = std::fs::File::open(path).map_err(|source| DataError::Read { path: path.into(), source })?;
    // The library may panic on a file that lies about itself.
    let read = catch_unwind(AssertUnwindSafe(|| {
        let reader = SerializedFileReader::new(file).map_err(|error| refuse(path, error.to_string()))?;
        each_string(&reader, path, column, take)
    }));
    read.unwrap_or_else(|_| Err(refuse(path, "the parquet library panicked on it".into())))
}

/// A build that cannot read it says which one can, and how to do without.
#[cfg(not(feature = "parquet"))]
pub(super) fn each_document(path: &Path, column: &str, _: &mut TakeDocument<'_>) -> Result<(), DataError> {
    let name = path.display();
    Err(refuse(
        path,
        format!(
            "this build does not read Parquet; install one that does with `cargo install --path crates/cli --locked \
             --features parquet`, or convert the file to lines of JSON with `python3 -c \"import pandas; \
             pandas.read_parquet('{name}', columns=['{column}']).to_json('data.jsonl', orient='records', lines=True)\"`"
        ),
    ))
}

fn refuse(path: &Path, reason: String) -> DataError {
    DataError::Parquet { path: path.into(), reason }
}

#[cfg(feature = "parquet")]
fn each_string(
    reader: &dyn parquet::file::reader::FileReader,
    path: &Path,
    column: &str,
    take: &mut TakeDocument<'_>,
) -> Result<(), DataError> {
    use parquet::record::Field;
    use parquet::schema::types::Type;
    let schema = reader.metadata().file_metadata().schema();
    let Some(found) = schema.get_fields().iter().find(|field| field.name() == column) else {
        let names: Vec<&str> = schema.get_fields().iter().map(|field| field.name()).collect();
        let all = names.join(", ");
        return Err(refuse(
            path,
            format!("it has no column `{column}`, but {all}; name the one with the text"),
        ));
    };
    let wrong = |error: parquet::errors::ParquetError| refuse(path, error.to_string());
    let only =
        Type::group_type_builder(schema.name()).with_fields(vec![found.clone()]).build().map_err(wrong)?;
    for row in reader.get_row_iter(Some(only)).map_err(wrong)? {
        match row.map_err(wrong)?.into_columns().into_iter().next() {
            Some((_, Field::Str(text))) => take(Document { text, ..Document::default() })?,
            None | Some((_, Field::Null)) => {}
            Some((_, other)) => {
                return Err(refuse(path, format!("column `{column}` has {other}; it must have strings")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{DataSource, Dataset};
    use super::*;

    fn open(path: &Path, column: &str) -> Result<Dataset, String> {
        let source = DataSource { field: column, ..DataSource::new(path) };
        Dataset::open(&source, 0, &mut |_, _| ()).map_err(|error| error.to_string())
    }

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("phalanx-{}-{name}", std::process::id()))
    }

    #[cfg(not(feature = "parquet"))]
    #[test]
    fn a_build_without_the_feature_says_what_to_do() {
        let path = path("off.parquet");
        std::fs::write(&path, b"PAR1").unwrap();
        let error = open(&path, "body").unwrap_err();
        std::fs::remove_file(&path).unwrap();
        for part in
            ["--features parquet", "columns=['body']", "is no Parquet file that can be read: this build"]
        {
            assert!(error.contains(part), "{error}");
        }
    }

    #[cfg(feature = "parquet")]
    #[test]
    fn rows_train_like_lines_of_json() {
        let (rows, lines, damaged) = (path("rows.parquet"), path("rows.jsonl"), path("damaged.parquet"));
        let texts = [Some("all work"), None, Some("and no play"), Some("é")];
        write(&rows, &texts);
        let json = texts.iter().flatten().map(|text| format!("{{\"body\": \"{text}\"}}\n"));
        std::fs::write(&lines, json.collect::<String>()).unwrap();
        let [found, expected] = [&rows, &lines].map(|path| open(path, "body").unwrap());
        assert_eq!((found.tokens(), found.documents()), (expected.tokens(), 3));
        assert_eq!(found.head(100), expected.head(100));
        let error = open(&rows, "text").unwrap_err();
        assert!(error.contains("it has no column `text`, but number, body"), "{error}");
        let error = open(&rows, "number").unwrap_err();
        assert!(error.contains("column `number` has 0; it must have strings"), "{error}");
        let bytes = std::fs::read(&rows).unwrap();
        for cut in [0, 3, 8, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(&damaged, &bytes[..cut]).unwrap();
            assert!(open(&damaged, "body").is_err(), "{cut} of {} bytes", bytes.len());
        }
        [rows, lines, damaged].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }

    /// Columns `number`, counted from 0, and `body`.
    #[cfg(feature = "parquet")]
    fn write(path: &Path, texts: &[Option<&str>]) {
        use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
        use parquet::file::writer::SerializedFileWriter;
        use parquet::schema::parser::parse_message_type;
        let schema = "message rows { required int32 number; optional binary body (utf8); }";
        let schema = std::sync::Arc::new(parse_message_type(schema).unwrap());
        let file = std::fs::File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Default::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let numbers: Vec<i32> = (0..texts.len() as i32).collect();
        column.typed::<Int32Type>().write_batch(&numbers, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let present: Vec<ByteArray> = texts.iter().flatten().map(|text| ByteArray::from(*text)).collect();
        let levels: Vec<i16> = texts.iter().map(|text| i16::from(text.is_some())).collect();
        column.typed::<ByteArrayType>().write_batch(&present, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
    }
}
