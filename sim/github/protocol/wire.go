// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import "time"

// Paths of the private protocol, below the server's address.
const (
	PathRegister = "/sim/runner/register" // POST RegisterRequest -> RegisterResponse
	PathRemove   = "/sim/runner/remove"   // POST RemoveRequest -> 204
	PathToken    = "/sim/runner/token"    // POST TokenRequest -> TokenResponse
	PathSessions = "/sim/runner/sessions" // POST -> SessionResponse; DELETE PathSessions/{id} -> 204
	PathMessages = "/sim/runner/messages" // GET ?session= -> Message, or 204 if there is no job
	PathJobs     = "/sim/runner/jobs"     // POST PathJobs/{id}/{acquire|renew|finish} with JobRequest
)

// RegisterRequest is the request of `config.sh`. The registration token is in the Authorization
// header as "RemoteAuth TOKEN".
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

// RegisterResponse holds the files of the runner in the format of a just-in-time config.
type RegisterResponse struct {
	EncodedConfig string `json:"encodedConfig"`
}

// RemoveRequest is the request of `config.sh remove`. The removal token is in the Authorization
// header.
type RemoveRequest struct {
	URL     string `json:"url"`
	AgentID string `json:"agentId"`
}

// TokenRequest requests an access token with an assertion that is signed with the runner's key.
type TokenRequest struct {
	ClientID  string `json:"clientId"`
	Assertion string `json:"assertion"`
}

// TokenResponse holds the access token of one runner.
type TokenResponse struct {
	AccessToken string `json:"accessToken"`
}

// SessionResponse identifies an open session. A runner has at most one open session.
type SessionResponse struct {
	SessionID string `json:"sessionId"`
}

// Message offers a job. The runner must acquire it within 60 s.
type Message struct {
	JobID    int64         `json:"jobId"`
	Name     string        `json:"name"`
	Duration time.Duration `json:"duration"`          // nanoseconds to run if Command is empty
	Command  string        `json:"command,omitempty"` // run with sh -c in the work folder
}

// JobRequest is the body of each call about a job.
type JobRequest struct {
	SessionID string `json:"sessionId"`
	Result    string `json:"result,omitempty"` // succeeded, failed or canceled; for finish
}

// JobResponse is the response to renew. If Cancelled is set, the runner must stop the job.
type JobResponse struct {
	Cancelled bool `json:"cancelled"`
}

// ErrorBody is the body of an error response.
type ErrorBody struct {
	Message string `json:"message"`
}
