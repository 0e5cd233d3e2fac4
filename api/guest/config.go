// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import "time"

// Paths in the machine.
const (
	// ConfigPath is where cloud-init writes the Config.
	ConfigPath = "/etc/hyperfleet/runner-config.json"
	// ServicePath is where the bootstrap service is installed.
	ServicePath = "/opt/hyperfleet/bootstrap-service"
	// ServiceUnit is the systemd unit that runs it.
	ServiceUnit = "hyperfleet-bootstrap.service"
	// StatusPath is where the service keeps its last Report.
	StatusPath = "/run/hyperfleet/status.json"
)

// Methods by which the machine gets its credential.
const (
	MethodRunnerToken     = "runner-token"
	MethodCallback        = "callback"
	MethodExternalSecrets = "external-secrets"
)

// Config tells the bootstrap service what to run. Unknown fields are errors.
type Config struct {
	// Method by which the credential is had.
	Method string `json:"method"`
	// Platform is the workload type, e.g. github-actions.
	Platform string `json:"platform"`
	// JITConfig configures one runner, once (GitHub).
	JITConfig string `json:"jit_config,omitempty"`
	// RunnerToken registers the runner where JITConfig is empty.
	RunnerToken string `json:"runner_token,omitempty"`
	// RegistrationURL is where the runner registers to.
	RegistrationURL string `json:"registration_url,omitempty"`
	RunnerName      string `json:"runner_name"`
	RunnerGroup     string `json:"runner_group,omitempty"`
	// Labels of the runner.
	Labels []string `json:"labels,omitempty"`
	// ExpiresAt is when the credential stops to be of use (RFC 3339).
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	Runner    Runner     `json:"runner"`
	// JobID is the one job that the machine runs, where the platform binds them.
	JobID string `json:"job_id,omitempty"`
	// Command does the job where the platform has no runner program (generic), with Env
	// added to its environment.
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	// IdleTimeout and JobTimeout end the machine; zero means never.
	IdleTimeout Duration `json:"idle_timeout,omitempty"`
	JobTimeout  Duration `json:"job_timeout,omitempty"`
	// Report is where phases are reported to, beside the log and the status file.
	Report *ReportTo `json:"report,omitempty"`
	// SPIFFE says how the machine attests.
	SPIFFE *SPIFFE `json:"spiffe,omitempty"`
	// Callback is where the credential is had with MethodCallback: then none is here.
	Callback *Callback `json:"callback,omitempty"`
}

// Callback is the operator's endpoint that hands over one machine's credential, once.
type Callback struct {
	// URL takes a POST without a body, and answers with a Credential.
	URL string `json:"url"`
	// Code is sent as a bearer token. It is good for one credential, of this machine.
	Code string `json:"code"`
	// CABundle in PEM verifies the endpoint; empty means the system's.
	CABundle string `json:"ca_bundle,omitempty"`
}

// Credential is the part of a Config that is secret. With MethodCallback the operator
// answers with it.
type Credential struct {
	JITConfig       string            `json:"jit_config,omitempty"`
	RunnerToken     string            `json:"runner_token,omitempty"`
	RegistrationURL string            `json:"registration_url,omitempty"`
	ExpiresAt       *time.Time        `json:"expires_at,omitempty"`
	JobID           string            `json:"job_id,omitempty"`
	Env             map[string]string `json:"env,omitempty"`
}

// Credential gives the configuration's credential.
func (c *Config) Credential() Credential {
	return Credential{
		JITConfig: c.JITConfig, RunnerToken: c.RunnerToken, RegistrationURL: c.RegistrationURL,
		ExpiresAt: c.ExpiresAt, JobID: c.JobID, Env: c.Env,
	}
}

// SetCredential puts a credential in the place of the configuration's own.
func (c *Config) SetCredential(credential Credential) {
	c.JITConfig, c.RunnerToken, c.RegistrationURL = credential.JITConfig, credential.RunnerToken, credential.RegistrationURL
	c.ExpiresAt, c.JobID, c.Env = credential.ExpiresAt, credential.JobID, credential.Env
}

// Refusal is what the operator's endpoint answers where it hands nothing over.
type Refusal struct {
	// Reason is one of the reasons for which a machine ends; empty where another try may help.
	Reason string `json:"reason,omitempty"`
	// Message is for people. It never holds a credential.
	Message string `json:"message"`
}

// Runner is the runner program.
type Runner struct {
	// DownloadURL is used only if InstallPath does not hold the runner.
	DownloadURL string `json:"download_url,omitempty"`
	// DownloadSHA256 of the download, in hexadecimal. Without it nothing is downloaded.
	DownloadSHA256 string `json:"download_sha256,omitempty"`
	InstallPath    string `json:"install_path,omitempty"`
	WorkDir        string `json:"work_dir,omitempty"`
	ConfigScript   string `json:"config_script,omitempty"`
	RunScript      string `json:"run_script,omitempty"`
	OS             string `json:"os,omitempty"`
	Arch           string `json:"arch,omitempty"`
	// Program is the runner's program where the platform has one and no scripts.
	Program string `json:"program,omitempty"`
}

// SPIFFE holds what attestation needs.
type SPIFFE struct {
	Enabled   bool   `json:"enabled"`
	Method    string `json:"method,omitempty"`
	JoinToken string `json:"join_token,omitempty"`
	SPIFFEID  string `json:"spiffe_id,omitempty"`
	TPMDevice string `json:"tpm_device,omitempty"`
}

// ReportTo is the operator's endpoint for one machine's reports.
type ReportTo struct {
	// URL takes a POST of a Report.
	URL string `json:"url"`
	// Token is sent as a bearer token. It is good for this machine's reports only.
	Token string `json:"token"`
	// CABundle in PEM verifies the endpoint; empty means the system's.
	CABundle string `json:"ca_bundle,omitempty"`
}

// Phase is how far the bootstrap service is.
type Phase string

// Phases in their order. Finished and Failed are last.
const (
	PhaseStarted     Phase = "Started"
	PhaseDownloading Phase = "Downloading"
	PhaseConfiguring Phase = "Configuring"
	// PhaseListening: the runner is online and waits for a job.
	PhaseListening Phase = "Listening"
	PhaseRunning   Phase = "Running"
	PhaseFinished  Phase = "Finished"
	PhaseFailed    Phase = "Failed"
)

// Reasons why a machine ends. With JobDone, JobGone, IdleTimeout and Terminated the phase
// is Finished, with all others Failed.
const (
	ReasonJobDone = "JobDone"
	// ReasonJobGone: the one job that the machine was made for cannot be had any more: it
	// was cancelled, or somebody else took it.
	ReasonJobGone           = "JobGone"
	ReasonCredentialExpired = "CredentialExpired" //nolint:gosec // a word, no credential
	// ReasonCredentialRefused: the operator hands the machine no credential: its claim code
	// was used before, or its claim is over.
	ReasonCredentialRefused = "CredentialRefused" //nolint:gosec // a word, no credential
	// ReasonCredentialUnavailable: the operator was not reached, or had no credential, for
	// as long as the machine waits for it.
	ReasonCredentialUnavailable = "CredentialUnavailable" //nolint:gosec // as above
	ReasonIdleTimeout           = "IdleTimeout"
	ReasonJobTimeout            = "JobTimeout"
	ReasonConfigInvalid         = "ConfigInvalid"
	ReasonDownloadFailed        = "DownloadFailed"
	ReasonRegistrationError     = "RegistrationFailed"
	ReasonRunnerFailed          = "RunnerFailed"
	ReasonTerminated            = "Terminated"
	// ReasonAttestationUnavailable: the configuration wants an identity that this
	// machine has no means to prove.
	ReasonAttestationUnavailable = "AttestationUnavailable"
)

// Report says what the bootstrap service does. It never holds a credential.
type Report struct {
	Phase Phase `json:"phase"`
	// Reason is set with Finished and Failed.
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time"`
	// Result of the job in the platform's word, e.g. success; with Finished and Failed, if
	// one ran and its end is known.
	Result string `json:"result,omitempty"`
	// Log is the end of what the runner wrote, without credentials, at most MaxLog bytes;
	// with Finished and Failed.
	Log string `json:"log,omitempty"`
}

// MaxLog bounds Report.Log in bytes.
const MaxLog = 64 << 10

// Duration is a time.Duration written as Go writes it, e.g. "30m0s".
type Duration time.Duration //nolint:recvcheck // a text is read into a pointer and written from a value

// Value is the duration as the time package has it.
func (d Duration) Value() time.Duration { return time.Duration(d) }

// MarshalText writes the duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads a duration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)

	return err //nolint:wrapcheck // the parser's own words name the text
}
