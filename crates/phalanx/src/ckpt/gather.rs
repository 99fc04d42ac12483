//! Files of checkpoints on their way between ranks that share no file system.
//!
//! When a checkpoint is written, every rank sends rank 0 what its file would be; when a run is resumed, rank 0 sends
//! the files to every rank that does not have them. Bytes go in pieces, so that a file takes no memory of its size.

use std::io::Read;
use std::path::Path;

use phalanx_mapping::Mapping;
use phalanx_net::{NetError, Network};

use super::{Checkpoint, Checkpoints, MANIFEST, Manifest, SaveError, Snapshot, Writer};
use crate::job::JobError;

/// Bytes of a message.
const PIECE: u64 = 4 << 20;

/// The way of a file: from which rank to which.
type Way = [u32; 2];

/// Brings `bytes` bytes from one rank to another, which both call: `piece` fills a piece there and takes it here.
fn carry(
    network: &dyn Network,
    [from, to]: Way,
    bytes: u64,
    mut piece: impl FnMut(&mut [u8]),
) -> Result<(), NetError> {
    let (mut rest, mut buffer) = (bytes, vec![0; bytes.min(PIECE) as usize]);
    while rest > 0 {
        let part = &mut buffer[..rest.min(PIECE) as usize];
        if network.rank() == from {
            piece(part);
        }
        network.carry(from, to, part)?;
        if network.rank() == to {
            piece(part);
        }
        rest -= part.len() as u64;
    }
    Ok(())
}

/// Sends what `source` has. Its length is known to both ranks.
fn send(network: &dyn Network, way: Way, bytes: u64, mut source: impl Read) -> Result<(), NetError> {
    // Sources lie in memory and are as long as they say: reading them cannot fail.
    carry(network, way, bytes, |piece| _ = source.read_exact(piece))
}

impl Writer {
    /// Brings the files of all ranks to rank 0, which writes them, those of `manifest` after its own. What rank 0 cannot
    /// write is its result alone.
    pub fn gather(
        &self,
        network: &dyn Network,
        manifest: &Manifest,
        own: Option<&Snapshot>,
    ) -> Result<Result<(), SaveError>, NetError> {
        let mut result = Ok(());
        for (rank, file) in (0..).zip(&manifest.files).skip(1) {
            let way = [rank, 0];
            if let (true, Some(snapshot)) = (network.rank() == rank, own) {
                let [header, data] = snapshot.contents();
                send(network, way, file.bytes, header.chain(data))?;
            } else if network.rank() == 0 {
                let mut out = self.begin_file(manifest.run.step, &file.name);
                carry(network, way, file.bytes, |piece| out.write(piece))?;
                result = result.and(out.finish());
            }
        }
        Ok(result)
    }
}

/// Gives every rank the checkpoint after `step`, which is whole on rank 0.
pub fn distribute(
    network: &dyn Network,
    checkpoints: &Checkpoints,
    writer: &Writer,
    step: u64,
) -> Result<Result<(), String>, JobError> {
    let mut text = match network.rank() {
        0 => std::fs::read(checkpoints.path(step).join(MANIFEST)).unwrap_or_default(),
        _ => Vec::new(),
    };
    network.broadcast(0, &mut text)?;
    let garbled = || JobError::Garbled { rank: 0, what: "manifest of a checkpoint" };
    let manifest = Manifest::parse(&text).map_err(|_| garbled())?;
    let has_it = network.rank() == 0 || is_here(&checkpoints.path(step), &text);
    let has_it = network.all_gather(&[u8::from(has_it)])?;
    let mut result = Ok(());
    for (rank, _) in (0..).zip(&has_it).filter(|(_, has_it)| has_it.first() == Some(&0)) {
        match network.rank() {
            0 => send_files(network, rank, &checkpoints.path(step), &manifest)?,
            own if own == rank => result = receive_files(network, rank, writer, &manifest)?,
            _ => {}
        }
    }
    Ok(result.map_err(|error| error.to_string()))
}

/// Whether this rank has a whole checkpoint with this manifest.
fn is_here(path: &Path, manifest: &[u8]) -> bool {
    let is_whole = |checkpoint: Checkpoint| checkpoint.verify().is_ok();
    std::fs::read(path.join(MANIFEST)).is_ok_and(|own| own == manifest)
        && Checkpoint::open(path).is_ok_and(is_whole)
}

fn send_files(network: &dyn Network, to: u32, dir: &Path, manifest: &Manifest) -> Result<(), JobError> {
    for file in &manifest.files {
        let path = dir.join(&file.name);
        // It was verified a moment ago; if it has changed since, the other rank finds that.
        let bytes = Mapping::open(&path);
        let bytes = bytes.as_ref().map_or(&[][..], |bytes| bytes);
        send(network, [0, to], file.bytes, bytes)?;
    }
    Ok(())
}

fn receive_files(
    network: &dyn Network,
    rank: u32,
    writer: &Writer,
    manifest: &Manifest,
) -> Result<Result<(), SaveError>, JobError> {
    let mut result = Ok(());
    for file in &manifest.files {
        let mut out = writer.begin_file(manifest.run.step, &file.name);
        carry(network, [0, rank], file.bytes, |piece| out.write(piece))?;
        result = result.and(out.finish());
    }
    Ok(result.and_then(|()| writer.read_back(manifest)).and_then(|()| writer.commit(manifest)))
}
