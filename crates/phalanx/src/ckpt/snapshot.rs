//! A copy of the weights and optimizer state that this process answers for, laid out as its file is.
//!
//! A tile that several devices hold is copied once, by the first rank that has it. The memory is allocated once; taking
//! the next snapshot overwrites the last one.

use std::collections::BTreeMap;
use std::ops::Range;

use phalanx_ir::DType;
use phalanx_program::{Port, PortTile};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::{Part, SaveError, TensorEntry};
use crate::{Error, Session, memory};

/// The tensors of all ranks and which rank's file holds which of their parts: what a manifest says about `session`.
pub fn tensors(session: &Session) -> Vec<TensorEntry> {
    let entry = |(port, tiles): (&Port, Vec<(&PortTile, u32)>)| {
        let parts = tiles.into_iter().map(|(tile, rank)| Part {
            file: rank as usize,
            origin: tile.origin.clone(),
            shape: tile.ty.shape.dims().to_vec(),
        });
        Some(TensorEntry { parts: parts.collect(), ..TensorEntry::of_port(port)? })
    };
    session.state_tiles().into_iter().filter_map(entry).collect()
}

/// The bytes of one rank's file.
pub struct Snapshot {
    header: Vec<u8>,
    data: Vec<u8>,
    /// Where the tile at an origin of a tensor is in `data`.
    places: BTreeMap<String, BTreeMap<Vec<usize>, Place>>,
}

struct Place {
    range: Range<usize>,
    dtype: DType,
}

impl Snapshot {
    /// Allocates the memory for snapshots of `session`.
    pub fn of(session: &Session) -> Result<Snapshot, Error> {
        let (mut places, mut infos, mut end) = (BTreeMap::new(), Vec::new(), 0);
        for (port, tiles) in session.state_tiles() {
            let Some(entry) = TensorEntry::of_port(port) else { continue };
            let own = tiles.into_iter().filter(|&(_, rank)| rank == session.rank());
            let places: &mut BTreeMap<_, _> = places.entry(port.name.clone()).or_default();
            for (tile, _) in own {
                let (range, dtype) = (end..end + tile.ty.bytes(), tile.ty.dtype);
                end = range.end;
                let (shape, data_offsets) = (tile.ty.shape.dims().to_vec(), (range.start, range.end));
                let info = TensorInfo { dtype: stored(dtype), shape, data_offsets };
                infos.push((entry.key(&tile.origin), info));
                places.insert(tile.origin.clone(), Place { range, dtype });
            }
        }
        memory::check(end as u64)?;
        Ok(Snapshot { header: header(infos)?, data: vec![0; end], places })
    }

    /// Copies what the last step has left; no other one has been launched.
    pub fn take(&mut self, session: &mut Session) -> Result<(), Error> {
        let Snapshot { data, places, .. } = self;
        session.visit_own_state(|port, tile, bytes| {
            if let Some(place) = places.get(&port.name).and_then(|tiles| tiles.get(&tile.origin)) {
                data[place.range.clone()].copy_from_slice(bytes);
            }
        })
    }

    /// How much memory it takes.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// What its file consists of.
    pub fn contents(&self) -> [&[u8]; 2] {
        [&self.header, &self.data]
    }

    /// Checks that every float is a finite number: what is not one never becomes one again.
    pub(super) fn check_finite(&self) -> Result<(), SaveError> {
        for (tensor, tiles) in &self.places {
            for (origin, place) in tiles.iter().filter(|(_, place)| place.dtype == DType::F32) {
                let values = self.data[place.range.clone()].as_chunks().0;
                let odd =
                    values.iter().map(|&bytes| f32::from_ne_bytes(bytes)).find(|value| !value.is_finite());
                if let Some(value) = odd {
                    return Err(SaveError::NotFinite {
                        tensor: tensor.clone(),
                        origin: origin.clone(),
                        value,
                    });
                }
            }
        }
        Ok(())
    }
}

/// The beginning of a safetensors file: the length of its list of tensors and the list, padded to eight bytes.
fn header(infos: Vec<(String, TensorInfo)>) -> Result<Vec<u8>, SaveError> {
    let list = Metadata::new(None, infos).map_err(SaveError::Layout)?;
    let mut text = serde_json::to_vec(&list).map_err(|error| SaveError::Manifest(error.into()))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    Ok(header)
}

/// The element type as safetensors calls it.
pub(super) fn stored(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::Bool => Dtype::BOOL,
    }
}
