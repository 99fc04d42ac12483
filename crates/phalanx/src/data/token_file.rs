//! Files of tokens, memory-mapped: those of llm.c and nanoGPT, which are also what `phalanx data tokenize` writes.
//!
//! A file of llm.c begins with 256 little-endian `i32`: a magic number, a version, the number of tokens. Two exist:
//! 20240520, version 1, with tokens of 16 bits, and 20240801, version 7, with tokens of 32 bits. A file without such a
//! header is nanoGPT's: nothing but tokens of 16 bits. The fourth number is 0 unless there are 2^31 tokens or more, which
//! llm.c cannot count: it has the upper half of their number.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use phalanx_mapping::Mapping;

use super::DataError;

/// Bytes of the header of llm.c.
const HEADER: usize = 1024;

/// Bytes of tokens that are looked at before their memory is given back.
const AT_ONCE: usize = 1 << 20;

/// How tokens are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenWidth {
    /// In 16 bits.
    Two,
    /// In 32 bits.
    Four,
}

impl TokenWidth {
    /// The narrowest for a vocabulary.
    pub(super) fn of(vocab: usize) -> TokenWidth {
        if vocab <= 1 << 16 { TokenWidth::Two } else { TokenWidth::Four }
    }

    fn bytes(self) -> usize {
        match self {
            TokenWidth::Two => 2,
            TokenWidth::Four => 4,
        }
    }

    /// The largest of the tokens in these bytes.
    fn largest(self, bytes: &[u8]) -> Option<u32> {
        match self {
            TokenWidth::Two => {
                bytes.as_chunks().0.iter().map(|&token| u16::from_le_bytes(token)).max().map(u32::from)
            }
            TokenWidth::Four => bytes.as_chunks().0.iter().map(|&token| u32::from_le_bytes(token)).max(),
        }
    }

    fn magic_and_version(self) -> (i32, i32) {
        match self {
            TokenWidth::Two => (20240520, 1),
            TokenWidth::Four => (20240801, 7),
        }
    }
}

/// A mapped file of tokens.
#[derive(Debug)]
pub(super) struct TokenFile {
    mapping: Mapping,
    /// Where the tokens begin.
    start: usize,
    width: TokenWidth,
}

impl TokenFile {
    pub(super) fn open(path: &Path) -> Result<TokenFile, DataError> {
        let mapping = Mapping::open(path).map_err(|source| DataError::Read { path: path.into(), source })?;
        let wrong = |reason: String| DataError::TokenFile { path: path.into(), reason };
        let Some((width, tokens)) = header(&mapping) else {
            return match mapping.len() % 2 {
                0 => Ok(TokenFile { mapping, start: 0, width: TokenWidth::Two }),
                _ => Err(wrong(format!("{} bytes are no tokens of 16 bits", mapping.len()))),
            };
        };
        let held = (mapping.len() - HEADER) / width.bytes();
        match (mapping.len() - HEADER).is_multiple_of(width.bytes()) && tokens == held as u64 {
            true => Ok(TokenFile { mapping, start: HEADER, width }),
            false => Err(wrong(format!("its header says {tokens} tokens, but it holds {held}"))),
        }
    }

    pub(super) fn len(&self) -> usize {
        (self.mapping.len() - self.start) / self.width.bytes()
    }

    pub(super) fn token(&self, index: usize) -> i64 {
        let at = self.start + index * self.width.bytes();
        match self.width {
            TokenWidth::Two => i64::from(u16::from_le_bytes([self.mapping[at], self.mapping[at + 1]])),
            TokenWidth::Four => {
                let bytes = [0, 1, 2, 3].map(|byte| self.mapping[at + byte]);
                i64::from(u32::from_le_bytes(bytes))
            }
        }
    }

    /// One more than the largest token; reads the whole file, and gives it back to the system bit by bit.
    pub(super) fn vocab(&self) -> usize {
        let mut vocab = 0;
        for first in (self.start..self.mapping.len()).step_by(AT_ONCE) {
            let bytes = first..self.mapping.len().min(first + AT_ONCE);
            let largest = self.width.largest(&self.mapping[bytes.clone()]);
            vocab = vocab.max(largest.map_or(0, |token| token as usize + 1));
            self.mapping.release(bytes);
        }
        vocab
    }
}

/// Width and number of tokens, if the file begins with a header of llm.c.
fn header(bytes: &[u8]) -> Option<(TokenWidth, u64)> {
    let words: &[[u8; 4]] = bytes.get(..HEADER)?.as_chunks().0;
    let [magic, version] = [0, 1].map(|word| i32::from_le_bytes(words[word]));
    let [low, high] = [2, 3].map(|word| u64::from(u32::from_le_bytes(words[word])));
    let width = [TokenWidth::Two, TokenWidth::Four]
        .into_iter()
        .find(|width| width.magic_and_version() == (magic, version))?;
    Some((width, high << 32 | low))
}

/// Writes a file of tokens with a header of llm.c.
pub(super) struct TokenFileWriter {
    file: BufWriter<File>,
    width: TokenWidth,
    tokens: usize,
}

impl TokenFileWriter {
    /// Makes the file, or empties it.
    pub(super) fn new(path: &Path, width: TokenWidth) -> io::Result<TokenFileWriter> {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&[0; HEADER])?;
        Ok(TokenFileWriter { file, width, tokens: 0 })
    }

    pub(super) fn append(&mut self, tokens: &[u32]) -> io::Result<()> {
        self.tokens += tokens.len();
        for &token in tokens {
            let bytes = token.to_le_bytes();
            self.file.write_all(&bytes[..self.width.bytes()])?;
        }
        Ok(())
    }

    /// Writes the header and waits until the disk has everything; the number of tokens.
    pub(super) fn finish(mut self) -> io::Result<usize> {
        let (magic, version) = self.width.magic_and_version();
        self.file.seek(SeekFrom::Start(0))?;
        for word in [magic, version] {
            self.file.write_all(&word.to_le_bytes())?;
        }
        self.file.write_all(&(self.tokens as u64).to_le_bytes())?;
        self.file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(self.tokens)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn scratch(name: &str, bytes: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("phalanx-tokens-{name}-{}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        path
    }

    fn read(name: &str, bytes: &[u8]) -> Result<Vec<i64>, String> {
        let path = scratch(name, bytes);
        let file = TokenFile::open(&path).map_err(|error| error.to_string());
        let tokens = file.map(|file| (0..file.len()).map(|index| file.token(index)).collect());
        fs::remove_file(path).unwrap();
        tokens
    }

    /// A file as llm.c writes it.
    fn llm_c(magic: i32, version: i32, tokens: i32, body: &[u8]) -> Vec<u8> {
        let words = [magic, version, tokens].into_iter().chain([0; 253]);
        words.flat_map(i32::to_le_bytes).chain(body.iter().copied()).collect()
    }

    #[test]
    fn three_formats_are_read() {
        assert_eq!(read("raw", &[1, 0, 2, 1]), Ok(vec![1, 258]), "nanoGPT has no header");
        assert_eq!(read("gpt2", &llm_c(20240520, 1, 2, &[1, 0, 255, 255])), Ok(vec![1, 65535]));
        assert_eq!(read("llama", &llm_c(20240801, 7, 1, &[0, 0, 1, 0])), Ok(vec![65536]));
        assert_eq!(read("empty", &[]), Ok(vec![]));
    }

    #[test]
    fn a_file_whose_length_contradicts_it_is_refused() {
        let error = read("odd", &[1, 0, 2]).unwrap_err();
        assert!(error.contains("3 bytes are no tokens of 16 bits"), "{error}");
        let error = read("short", &llm_c(20240520, 1, 3, &[1, 0])).unwrap_err();
        assert!(error.contains("its header says 3 tokens, but it holds 1"), "{error}");
        assert!(read("ragged", &llm_c(20240801, 7, 1, &[1, 0, 0, 0, 9])).is_err());
        assert!(read("negative", &llm_c(20240520, 1, -1, &[1, 0])).is_err());
    }

    #[test]
    fn written_files_read_back() {
        for (vocab, tokens) in [(65536, vec![0, 65535, 7]), (65537, vec![65536, 1])] {
            let path = scratch(&format!("written-{vocab}"), b"old");
            let mut writer = TokenFileWriter::new(&path, TokenWidth::of(vocab)).unwrap();
            writer.append(&tokens[..1]).unwrap();
            writer.append(&tokens[1..]).unwrap();
            assert_eq!(writer.finish().unwrap(), tokens.len());
            let file = TokenFile::open(&path).unwrap();
            let read: Vec<u32> = (0..file.len()).map(|index| file.token(index) as u32).collect();
            assert_eq!((read, file.vocab()), (tokens, vocab));
            fs::remove_file(path).unwrap();
        }
    }
}
