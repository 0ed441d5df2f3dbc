//! All servers of a service: one session for each, created on first use, and the routing of requests.

use crate::ClientConfig;
use crate::join::join;
use crate::path::first_part;
use crate::prefixes::Prefixes;
use crate::server_list::not_a_member;
use crate::session::{Session, Who};
use forebay_model::{FileId, Members, Name, Result, ServerId, lock};
use forebay_wire::{Reply, Request};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;

/// State shared by all clones of a client.
pub(crate) struct Service {
    /// The session with the server at the configured addresses.
    first: Arc<Session>,
    others: Mutex<BTreeMap<ServerId, Arc<Session>>>,
    pub(crate) prefixes: Prefixes,
}

impl Service {
    pub(crate) async fn start(config: ClientConfig) -> Result<Arc<Service>> {
        let first = Session::first(config).await?;
        Ok(Arc::new(Service { first, others: Mutex::default(), prefixes: Prefixes::default() }))
    }

    /// Ends all sessions.
    pub(crate) fn close(&self) {
        self.first.close();
        let others = lock(&self.others);
        others.values().for_each(|session| session.close());
    }

    /// The session with the server at the configured addresses.
    pub(crate) fn first(&self) -> &Arc<Session> {
        &self.first
    }

    /// The server list, if there are several servers.
    pub(crate) fn cluster(&self) -> Option<Arc<Members>> {
        self.first.server_list.members().filter(|members| members.all().len() > 1)
    }

    /// The session with a server.
    pub(crate) fn session(&self, server: ServerId) -> Result<Arc<Session>> {
        match self.cluster() {
            None => Ok(self.first.clone()),
            Some(_) if self.first.server() == Some(server) => Ok(self.first.clone()),
            Some(members) if members.contains(server) => Ok(self.other(server)),
            Some(_) => Err(not_a_member(server)),
        }
    }

    fn other(&self, server: ServerId) -> Arc<Session> {
        let mut others = lock(&self.others);
        others.entry(server).or_insert_with(|| self.first.sibling(server)).clone()
    }

    /// The sessions with all servers, in order of server id.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        match self.cluster() {
            None => vec![self.first.clone()],
            Some(members) => members.servers().filter_map(|server| self.session(server).ok()).collect(),
        }
    }

    /// The sessions with all servers that hold names.
    pub(crate) fn namers(&self) -> Vec<Arc<Session>> {
        match self.cluster() {
            None => vec![self.first.clone()],
            Some(members) => members.namers().filter_map(|server| self.session(server).ok()).collect(),
        }
    }

    /// The session with the server that answers a request.
    pub(crate) fn session_for(&self, request: &Request) -> Result<Arc<Session>> {
        match self.cluster().and_then(|members| server_for(&members, request)) {
            None => Ok(self.first.clone()),
            Some(server) => self.session(server),
        }
    }

    /// Sends a request to the server that answers it.
    pub(crate) async fn call(&self, who: &Who, request: &Request) -> Result<Reply> {
        // With one server this needs no routing and no reference count.
        match self.cluster() {
            None => self.first.call(who, request).await,
            Some(_) => self.session_for(request)?.call(who, request).await,
        }
    }

    /// Sends a request to all servers concurrently.
    pub(crate) async fn call_all(&self, who: &Who, request: &Request) -> Vec<(Arc<Session>, Result<Reply>)> {
        let all = self.all();
        let calls = all.iter().map(|session| session.call(who, request)).collect();
        let replies = join(calls).await;
        all.into_iter().zip(replies).collect()
    }

    /// Sends a request to all servers concurrently. Waits for a server no longer than the connect timeout.
    pub(crate) async fn survey(&self, who: &Who, request: &Request) -> Vec<(Arc<Session>, Result<Reply>)> {
        let all = self.all();
        if let [only] = &all[..] {
            return vec![(only.clone(), only.call(who, request).await)];
        }
        let call_one = async |session: &Session| {
            let patience: Duration = session.config.connect_timeout.min(session.config.request_timeout);
            let answer = timeout(patience, Box::pin(session.call(who, request))).await;
            answer.unwrap_or_else(|_| Err(session.no_answer_in(patience)))
        };
        let replies = join(all.iter().map(|session| call_one(session)).collect()).await;
        all.into_iter().zip(replies).collect()
    }
}

/// The server that answers a request; `None` if any server can.
fn server_for(members: &Members, request: &Request) -> Option<ServerId> {
    match request {
        Request::Walk { dir, path, .. } => Some(server_for_walk(members, *dir, path)),
        Request::Jump { path, known, .. } => {
            let rest = path.get(usize::from(known.len)..).unwrap_or_default();
            Some(server_for_walk(members, known.dir, rest))
        }
        Request::Create { dir, name, .. }
        | Request::MakeDir { dir, name, .. }
        | Request::MakeSpecial { dir, name, .. }
        | Request::RemoveDir { dir, name }
        | Request::Unlink { dir, name }
        | Request::Rename { dir, name, .. }
        | Request::Link { dir, name, .. }
        | Request::Symlink { dir, name, .. } => Some(members.home(*dir, name)),
        Request::GetAttr { file }
        | Request::SetAttr { file, .. }
        | Request::Open { file, .. }
        | Request::TruncateFile { file, .. }
        | Request::ReadLink { file }
        | Request::LocalPipe { file }
        | Request::GetXattr { file, .. }
        | Request::SetXattr { file, .. }
        | Request::ListXattr { file }
        | Request::RemoveXattr { file, .. }
        | Request::GetLayout { file }
        | Request::SetLayout { dir: file, .. } => Some(members.authority(*file)),
        Request::Reopen { token }
        | Request::Close { token }
        | Request::Truncate { token, .. }
        | Request::Extend { token, .. }
        | Request::Punch { token, .. }
        | Request::Seek { token, .. }
        | Request::Sync { token }
        | Request::Ring { token, .. }
        | Request::Map { token, .. }
        | Request::MapFile { token, .. }
        | Request::KeepPages { token }
        | Request::Write { token, .. }
        | Request::Read { token, .. } => Some(members.authority(token.file)),
        Request::Drain(_) => Some(members.authority(FileId::ROOT)),
        _ => None,
    }
}

/// The server that resolves the first component of a path.
fn server_for_walk(members: &Members, dir: FileId, path: &[u8]) -> ServerId {
    match first_part(path).map(Name::new) {
        Some(Ok(name)) => members.home(dir, &name),
        // The path is empty, starts with `..` or has an invalid name: the authority of the directory reports the error.
        _ => members.authority(dir),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::{Access, Change, Member, Uid};
    use forebay_wire::{Known, RenameMode, Token};

    #[test]
    fn requests_go_to_the_home_of_the_name_or_authority_of_the_file() {
        let member = |n| Member { server: ServerId(n), address: format!("tcp:h{n}:1"), socket: None };
        let members = Members::new(1, (1..=5).map(member).collect()).unwrap();
        let name = |text: &str| Name::new(text).unwrap();
        let (dir, file) = (FileId::made_by(ServerId(2), 9), FileId::made_by(ServerId(4), 7));
        let token = Token { file, access: Access::BOTH, uid: Uid(0), serial: 1, seal: [0; 16] };
        let walk = |path: &str| Request::Walk { dir, path: path.into(), follow: true };
        let jump = |path: &str, len: u16| Request::Jump {
            path: path.into(),
            follow: true,
            known: Known { len, dir },
        };
        let at_home = |text: &str| Some(members.home(dir, &name(text)));
        let rename = Request::Rename {
            dir,
            name: name("n"),
            to_dir: file,
            to_name: name("m"),
            mode: RenameMode::Replace,
        };
        for (request, expected) in [
            (walk("n/m"), at_home("n")),
            (walk("//./n"), at_home("n")),
            (walk("../n"), Some(ServerId(2))),
            (walk(""), Some(ServerId(2))),
            (walk("."), Some(ServerId(2))),
            (walk(&"x".repeat(300)), Some(ServerId(2))),
            (jump("a/b/n/m", 3), at_home("n")),
            (jump("a/b", 3), Some(ServerId(2))),
            (jump("a/b", 9), Some(ServerId(2))),
            (Request::MakeDir { dir, name: name("n"), mode: 0 }, at_home("n")),
            (Request::Link { file, dir, name: name("n") }, at_home("n")),
            (rename, at_home("n")),
            (Request::SetAttr { file, change: Change::default() }, Some(ServerId(4))),
            (Request::GetAttr { file: FileId::ROOT }, Some(ServerId(1))),
            (Request::Sync { token }, Some(ServerId(4))),
            (Request::StatFs, None),
        ] {
            assert_eq!(server_for(&members, &request), expected, "{request:?}");
        }
    }
}
