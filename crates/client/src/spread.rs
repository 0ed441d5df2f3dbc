//! The bytes of a file on other servers than the one that opened it: cut where the layout says, moved at once.

use crate::flow::Target;
use crate::join::join;
use crate::opens::{done, unexpected};
use crate::roll::not_a_member;
use crate::service::Service;
use crate::session::Session;
use crate::transfer::check_range;
use forebay_model::{Error, ErrorKind, Layout, Result, ServerId, Span};
use forebay_wire::{Reply, Request};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Where the bytes of an open file are.
pub(crate) struct Spread {
    service: Arc<Service>,
    /// The session with the server that opened it.
    authority: Arc<Session>,
    layout: Layout,
    /// The servers that have seen the file's token.
    used: Mutex<BTreeSet<ServerId>>,
}

/// A piece of a read, and what came of it.
struct Part<'a> {
    server: ServerId,
    span: Span,
    into: &'a mut [u8],
}

impl Spread {
    /// The spread of a file, unless all of it is on the server that opened it.
    pub(crate) fn of(
        service: &Arc<Service>,
        authority: &Arc<Session>,
        layout: &Layout,
    ) -> Result<Option<Spread>> {
        let Some(members) = service.several() else {
            return Ok(None);
        };
        let servers = &layout.servers;
        if servers.is_empty() || (servers.len() > 1 && layout.stripe == 0) {
            let text = format!("the service's layout of a file makes no sense: {layout:?}");
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        if let Some(stranger) = servers.iter().find(|server| !members.contains(**server)) {
            return Err(not_a_member(*stranger));
        }
        if servers.len() == 1 && authority.server() == layout.only() {
            return Ok(None);
        }
        let (service, authority, layout) = (service.clone(), authority.clone(), layout.clone());
        Ok(Some(Spread { service, authority, layout, used: Mutex::default() }))
    }

    /// The other servers that have seen the file's token.
    pub(crate) fn used(&self) -> Vec<Arc<Session>> {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.iter().filter_map(|server| self.service.session(*server).ok()).collect()
    }

    fn session(&self, server: ServerId) -> Result<Arc<Session>> {
        let session = self.service.session(server)?;
        if self.authority.server() != Some(server) {
            self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(server);
        }
        Ok(session)
    }

    /// Tells whoever puts appends, truncations and holes in order.
    pub(crate) async fn tell_order(&self, target: Target<'_>, request: &Request) -> Result<()> {
        done(&self.authority, target.who, request).await
    }

    /// Tells everybody who has something of the file.
    pub(crate) async fn tell_all(&self, target: Target<'_>, request: &Request) -> Result<()> {
        let mut servers: BTreeSet<ServerId> = self.layout.servers.iter().copied().collect();
        servers.extend(self.authority.server());
        self.tell_each(target, servers, request).await
    }

    async fn tell_each(
        &self,
        target: Target<'_>,
        servers: BTreeSet<ServerId>,
        request: &Request,
    ) -> Result<()> {
        let calls = servers.into_iter().map(|server| self.tell(target, server, request));
        join(calls.collect()).await.into_iter().collect()
    }

    async fn tell(&self, target: Target<'_>, server: ServerId, request: &Request) -> Result<()> {
        let session = self.session(server)?;
        match done(&session, target.who, request).await {
            Err(error) if self.is_doubted(server, &error) => {
                self.reassert(target).await?;
                done(&session, target.who, request).await
            }
            told => told,
        }
    }

    /// Whether a server did not accept a file as open that its authority may have forgotten: it has been away, and
    /// was asked before this client was there again.
    fn is_doubted(&self, server: ServerId, error: &Error) -> bool {
        error.kind() == ErrorKind::Stale && self.authority.server() != Some(server)
    }

    async fn reassert(&self, target: Target<'_>) -> Result<()> {
        let request = Request::Reopen { token: target.token };
        self.authority.call(target.who, &request).await.map(drop)
    }

    async fn write(&self, target: Target<'_>, server: ServerId, offset: u64, data: &[u8]) -> Result<()> {
        let session = self.session(server)?;
        match session.write_at(target, offset, data).await {
            Err(error) if self.is_doubted(server, &error) => {
                self.reassert(target).await?;
                session.write_at(target, offset, data).await
            }
            written => written,
        }
    }

    async fn read(
        &self,
        target: Target<'_>,
        server: ServerId,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        let session = self.session(server)?;
        match session.read_at(target, offset, into).await {
            Err(error) if self.is_doubted(server, &error) => {
                self.reassert(target).await?;
                session.read_at(target, offset, into).await
            }
            read => read,
        }
    }

    /// Whether a transfer needs one server only.
    pub(crate) fn is_narrow(&self, offset: u64, len: usize) -> bool {
        let span = Span::new(offset, offset.saturating_add(len as u64));
        self.layout.pieces(span).nth(1).is_none()
    }

    /// Writes all of `data` at an offset.
    pub(crate) async fn write_at(&self, target: Target<'_>, offset: u64, data: &[u8]) -> Result<()> {
        let span = check_range(offset, data.len())?;
        if self.is_narrow(offset, data.len()) {
            return self.write(target, self.layout.server_at(offset), offset, data).await;
        }
        let parts = self.layout.pieces(span).map(|(server, span)| {
            let data = &data[(span.start - offset) as usize..(span.end - offset) as usize];
            self.write(target, server, span.start, data)
        });
        join(parts.collect()).await.into_iter().collect()
    }

    /// Writes all of `data` behind the last byte, and says where that was: the authority puts it there.
    pub(crate) async fn append(&self, target: Target<'_>, data: &[u8]) -> Result<u64> {
        self.authority.append(target, data).await
    }

    /// Fills `into` from an offset on; fewer bytes only at the end of the file.
    pub(crate) async fn read_at(&self, target: Target<'_>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let span = check_range(offset, into.len())?;
        let mut parts = Vec::new();
        let mut rest = &mut *into;
        for (server, span) in self.layout.pieces(span) {
            let (into, behind) = rest.split_at_mut(span.len() as usize);
            parts.push(Part { server, span, into });
            rest = behind;
        }
        let reads = parts.iter_mut().map(|part| self.read_part(target, part, 0)).collect();
        let seen = join(reads).await;
        if seen.iter().zip(&parts).all(|(seen, part)| seen.as_ref().is_ok_and(|len| *len == part.into.len()))
        {
            return Ok(parts.iter().map(|part| part.into.len()).sum());
        }
        self.settle(target, span, parts, seen).await
    }

    async fn read_part(&self, target: Target<'_>, part: &mut Part<'_>, from: usize) -> Result<usize> {
        let (at, into) = (part.span.start + from as u64, &mut part.into[from..]);
        Ok(from + self.read(target, part.server, at, into).await?)
    }

    /// A server that has nothing more of the file does not know whether it ends there. What lies before the end is asked
    /// for once more, since it may have been written meanwhile; what then is missing are zeros.
    async fn settle(
        &self,
        target: Target<'_>,
        span: Span,
        mut parts: Vec<Part<'_>>,
        seen: Vec<Result<usize>>,
    ) -> Result<usize> {
        let size = match self.size(target).await {
            Ok(size) => size,
            Err(error) => return Err(seen.into_iter().find_map(Result::err).unwrap_or(error)),
        };
        let end = size.clamp(span.start, span.end);
        let mut again = Vec::new();
        for (part, seen) in parts.iter_mut().zip(seen) {
            let inside = end.saturating_sub(part.span.start).min(part.span.len()) as usize;
            // What a server says about bytes behind the end does not matter.
            if inside == 0 {
                continue;
            }
            let seen = seen?;
            if seen < inside {
                again.push(self.complete(target, part, seen, inside));
            }
        }
        join(again).await.into_iter().collect::<Result<()>>()?;
        Ok((end - span.start) as usize)
    }

    async fn complete(
        &self,
        target: Target<'_>,
        part: &mut Part<'_>,
        seen: usize,
        inside: usize,
    ) -> Result<()> {
        let len = self.read_part(target, part, seen).await?;
        if len < inside {
            part.into[len..inside].fill(0);
        }
        Ok(())
    }

    async fn size(&self, target: Target<'_>) -> Result<u64> {
        let request = Request::GetAttr { file: target.token.file };
        match self.authority.call(target.who, &request).await? {
            Reply::Attr(attr) => Ok(attr.size),
            other => Err(unexpected(&request, &other)),
        }
    }
}
