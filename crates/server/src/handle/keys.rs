//! Requests about users' keys.

use crate::caller::Caller;
use crate::cluster::Peers;
use crate::key::{KeyHolder, random};
use crate::keys::{Keys, now};
use crate::people;
use crate::session::Sessions;
use forebay_model::{Error, ErrorKind, Result, ServerId, Uid};
use forebay_wire::{KeyCall, KeyId, KeyReply, PeerReply, PeerRequest, UserKey};
use std::sync::Arc;

/// Maximum length of a user's name in the list of keys.
const NAME: usize = 64;

/// Serves requests about users' keys.
pub(crate) struct KeyRequests {
    pub(crate) own: ServerId,
    /// The service's own key.
    pub(crate) key: Arc<KeyHolder>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) peers: Arc<Peers>,
}

impl KeyRequests {
    /// Grants, lists and revokes keys, on this and all other servers.
    pub(crate) async fn serve(&self, caller: &Caller, call: &KeyCall) -> Result<KeyReply> {
        caller.demand("manage the keys of this service")?;
        match call {
            KeyCall::List => Ok(KeyReply::Keys(self.keys.all())),
            KeyCall::Grant { user, expires } => {
                let key = self.grant(caller, user, *expires)?;
                let secret = *self.key.key.for_user(&key).as_bytes();
                let missing = self.spread_keys().await;
                Ok(KeyReply::Granted { key, secret, missing })
            }
            KeyCall::Revoke { id } => {
                let key = tokio::task::block_in_place(|| self.keys.revoke(*id))?;
                tracing::info!(uid = %caller.who.uid, key = %id, user = %key.user, "revoked a key");
                tokio::task::block_in_place(|| self.keys.end_spent(&self.sessions));
                let missing = self.spread_keys().await;
                tokio::task::block_in_place(|| self.keys.write()).map_err(|error| {
                    let unreached: String =
                        missing.iter().map(|server| format!("; server {server} did not answer")).collect();
                    let text = format!(
                        "key {id} is revoked and its connections are closed, but a restart of server {} would bring it \
                         back: {error}: free space there; the server then writes the list by itself{unreached}",
                        self.own
                    );
                    Error::new(error.kind(), text)
                })?;
                Ok(KeyReply::Revoked { key, missing })
            }
        }
    }

    fn grant(&self, caller: &Caller, user: &str, expires: Option<u64>) -> Result<UserKey> {
        let refused = |kind, text: String| Err(Error::new(kind, text));
        if !caller.local {
            let text = "keys are granted over the service's Unix socket only, so that the secret never crosses the network"
                .to_owned();
            return refused(ErrorKind::NotPermitted, text);
        }
        let found = people::user(user).filter(|(uid, _, name)| *uid != Uid(u32::MAX) && name.len() <= NAME);
        let Some((uid, gid, user)) = found else {
            let user = user.escape_debug();
            return refused(
                ErrorKind::Invalid,
                format!("no user \"{user}\" on the server's machine: give the uid"),
            );
        };
        let made = now();
        if expires.is_some_and(|end| end <= made) {
            return refused(ErrorKind::Invalid, "the expiry is in the past".to_owned());
        }
        let bytes = random()?;
        let id = KeyId(*bytes.first_chunk().expect("32 bytes"));
        let key = UserKey { id, uid, gid, user, made, expires, revoked: None };
        tokio::task::block_in_place(|| self.keys.grant(key.clone()))?;
        tracing::info!(uid = %caller.who.uid, key = %id, user = %key.user, "granted a key");
        Ok(key)
    }

    /// Sends all known keys to the other servers and returns the servers that did not get them; these learn the keys
    /// when they join this server again.
    async fn spread_keys(&self) -> Vec<ServerId> {
        let mut calls = Vec::new();
        // Concurrently, so that one server that does not answer does not delay the others.
        for server in self.peers.others() {
            let (peers, keys) = (self.peers.clone(), self.keys.clone());
            let call = async move { peers.ask(server, PeerRequest::Keys { keys: keys.all() }).await };
            calls.push((server, tokio::spawn(call)));
        }
        let mut missing = Vec::new();
        for (server, call) in calls {
            match call.await {
                Ok(Ok(PeerReply::Keys { keys })) => {
                    if tokio::task::block_in_place(|| self.keys.merge_and_end(&keys, &self.sessions)).is_err()
                    {
                        missing.push(server);
                    }
                }
                _ => missing.push(server),
            }
        }
        missing
    }
}
