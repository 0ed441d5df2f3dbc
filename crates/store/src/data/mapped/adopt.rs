//! Objects of an earlier server process: processes may have continued to store into them.

use super::object::Object;
use super::ranges::Ranges;
use super::{Mapped, NOTE_VERSION, Note, note_key, object_name};
use crate::data::Data;
use crate::data::file::SizeRecord;
use crate::data::recover::Start;
use crate::meta::{Batch, KeySpace};
use forebay_model::{FileId, Result};
use std::ops::ControlFlow;

impl Data {
    /// Adopts the objects that an earlier server process left. After the machine died they are discarded with all
    /// unsynced data.
    pub(in crate::data) fn adopt_objects(&self, start: Start) -> Result<()> {
        let mut notes = Vec::new();
        self.kv.scan(KeySpace::MappedFile.prefix(), b"", &mut |key, value| {
            if let Some(id) = key.get(1..).and_then(|id| id.try_into().ok()) {
                notes.push((FileId(u64::from_be_bytes(id)), value.to_vec()));
            }
            ControlFlow::Continue(())
        })?;
        for name in self.disk.names()?.iter().filter(|name| name.ends_with(".object")) {
            // A server process died while creating or removing it.
            if !notes.iter().any(|(id, _)| object_name(*id) == *name) {
                self.disk.remove(name)?;
            }
        }
        let boot = crate::data::rings::boot()?;
        for (id, value) in notes {
            let note = value.split_first().filter(|(version, _)| **version == NOTE_VERSION);
            let note = note.and_then(|(_, bytes)| postcard::from_bytes::<Note>(bytes).ok());
            let adopted = match note {
                Some(note) if start != Start::MachineDied && note.boot == boot => {
                    self.adopt_object(id, &note)?
                }
                _ => false,
            };
            if !adopted {
                let mut batch = Batch::default();
                batch.remove(note_key(id));
                self.kv.commit(batch)?;
                self.disk.remove(&object_name(id))?;
            }
        }
        Ok(())
    }

    fn adopt_object(&self, id: FileId, note: &Note) -> Result<bool> {
        let name = object_name(id);
        let (Some(file), Some(path)) = (self.disk.open(&name)?, self.disk.path(&name)) else {
            return Ok(false);
        };
        // The file was deleted with its last name.
        if self.kv.get(&SizeRecord::key(id))?.is_none() {
            return Ok(false);
        }
        let state = self.files.get(id, || self.load(id))?;
        let mut state = state.lock();
        let object = Object::new(file, path);
        // An earlier server process may have died while changing the size.
        let cut = object.resize(state.size, state.size);
        cut.map_err(|error| self.object_failed("truncate", id, &error))?;
        let mut present = Ranges::default();
        note.present.iter().for_each(|&span| present.add(span));
        let mut mapped = Mapped::new(object, note.writer);
        let charge = present.len_below(state.size);
        // Without a writer nothing was stored, and nothing is to be written back.
        (mapped.present, mapped.stored) = (present, note.writer.write);
        self.objects.usage.lock().add(&mut mapped.charge, charge, note.writer.uid);
        state.mapped = Some(Box::new(mapped));
        self.objects.insert(id);
        Ok(true)
    }
}
