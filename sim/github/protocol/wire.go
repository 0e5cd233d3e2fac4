// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import "time"

// Paths of the private protocol, below the server's address.
const (
	PathRegister = "/sim/runner/register" // POST RegisterRequest -> Config as JITReply
	PathRemove   = "/sim/runner/remove"   // POST RemoveRequest -> 204
	PathToken    = "/sim/runner/token"    // POST TokenRequest -> TokenReply
	PathSessions = "/sim/runner/sessions" // POST -> SessionReply; DELETE PathSessions/{id} -> 204
	PathMessages = "/sim/runner/messages" // GET ?session= -> Message, or 204 when nothing came
	PathJobs     = "/sim/runner/jobs"     // POST PathJobs/{id}/{acquire|renew|finish} with JobRequest
)

// RegisterRequest is what `config.sh` sends. The registration token travels in
// the Authorization header as "RemoteAuth TOKEN".
type RegisterRequest struct {
	URL             string   `json:"url"` // https://HOST/OWNER[/REPO] or https://HOST/enterprises/NAME
	Name            string   `json:"name"`
	Labels          []string `json:"labels"`
	Group           string   `json:"group,omitempty"`
	WorkFolder      string   `json:"workFolder,omitempty"`
	Ephemeral       bool     `json:"ephemeral"`
	DisableUpdate   bool     `json:"disableUpdate"`
	NoDefaultLabels bool     `json:"noDefaultLabels"`
	Replace         bool     `json:"replace"`
}

// RegisterReply carries the runner's files, packed like a JIT configuration.
type RegisterReply struct {
	EncodedConfig string `json:"encodedConfig"`
}

// RemoveRequest is what `config.sh remove` sends, with a removal token in the
// Authorization header.
type RemoveRequest struct {
	URL     string `json:"url"`
	AgentID string `json:"agentId"`
}

// TokenRequest trades an assertion signed with the runner's key for a token.
type TokenRequest struct {
	ClientID  string `json:"clientId"`
	Assertion string `json:"assertion"`
}

// TokenReply is the access token of one runner.
type TokenReply struct {
	AccessToken string `json:"accessToken"`
}

// SessionReply names an open session. At most one is open per runner.
type SessionReply struct {
	SessionID string `json:"sessionId"`
}

// Message offers a job. The runner must acquire it within 60 s.
type Message struct {
	JobID    int64         `json:"jobId"`
	Name     string        `json:"name"`
	Duration time.Duration `json:"duration"`          // nanoseconds to run when Command is empty
	Command  string        `json:"command,omitempty"` // run with sh -c in the work folder
}

// JobRequest goes with each call about a job.
type JobRequest struct {
	SessionID string `json:"sessionId"`
	Result    string `json:"result,omitempty"` // succeeded, failed or canceled; for finish
}

// JobReply answers renew. Cancelled asks the runner to stop the job.
type JobReply struct {
	Cancelled bool `json:"cancelled"`
}

// Fault is the body of a refusal.
type Fault struct {
	Message string `json:"message"`
}
