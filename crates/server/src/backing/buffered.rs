//! Which requests need the buffer alone, and so need not wait for the back end.

use super::BackingLayer;
use forebay_model::{FileId, FileKind, Identity};
use forebay_store::Walked;
use forebay_wire::Request;

impl BackingLayer {
    /// Whether a request does not use the back end. This only decides in which queue the request waits: it may still
    /// use the back end, if a file was drained meanwhile.
    pub(crate) fn stays_in_buffer(&self, who: &Identity, request: &Request) -> bool {
        let Some(backing) = &self.backing else { return true };
        // A file without a record is not in the back end, and nothing in such a directory is. The root always is.
        let is_new = |file: FileId| file != FileId::ROOT && matches!(backing.knows(file), Ok(false));
        let leads_to_new = |dir, path: &[u8], follow| {
            match self.store.names().walk(who, dir, path, follow) {
                // The back end may have a directory of the same name by now.
                Ok(Walked::Found(file, inode)) => inode.kind() != FileKind::Directory && is_new(file),
                _ => false,
            }
        };
        match *request {
            Request::StatFs | Request::History { .. } => true,
            Request::Walk { dir, ref path, follow } => leads_to_new(dir, path, follow),
            Request::Jump { ref path, follow, known } => {
                let rest = path.get(usize::from(known.len)..).unwrap_or_default();
                leads_to_new(known.dir, rest.strip_prefix(b"/").unwrap_or(rest), follow)
            }
            Request::GetAttr { file }
            | Request::SetAttr { file, .. }
            | Request::Open { file, .. }
            | Request::TruncateFile { file, .. }
            | Request::ReadLink { file }
            | Request::GetXattr { file, .. }
            | Request::SetXattr { file, .. }
            | Request::ListXattr { file }
            | Request::RemoveXattr { file, .. }
            | Request::GetLayout { file } => is_new(file),
            Request::Reopen { ref token }
            | Request::Close { ref token }
            | Request::Truncate { ref token, .. }
            | Request::Punch { ref token, .. }
            | Request::Extend { ref token, .. } => is_new(token.file),
            Request::Create { dir, .. }
            | Request::MakeDir { dir, .. }
            | Request::Symlink { dir, .. }
            | Request::MakeSpecial { dir, .. }
            | Request::Unlink { dir, .. }
            | Request::RemoveDir { dir, .. }
            | Request::ReadDir { dir, .. }
            | Request::SetLayout { dir, .. } => is_new(dir),
            _ => false,
        }
    }
}
