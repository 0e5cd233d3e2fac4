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
	// StartPath is there as soon as the service may start. An image that watches it (a
	// systemd path unit) need not wait for cloud-init's last stage, which starts the
	// service in any case.
	StartPath = "/run/hyperfleet/start"
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
	// Environment is added to that of the runner, and with it of its job. It is no secret.
	Environment map[string]string `json:"environment,omitempty"`
	// Cache names caches for the runner and its job; nil where there are none.
	Cache *Cache `json:"cache,omitempty"`
	// Traceparent leads to the trace of the machine (W3C Trace Context): the runner has it as
	// TRACEPARENT, so that a job's own spans can join. Empty where it is not exported.
	Traceparent string `json:"traceparent,omitempty"`
	// Report is where phases are reported to, beside the log and the status file.
	Report *ReportTo `json:"report,omitempty"`
	// SPIFFE says how the machine attests.
	SPIFFE *SPIFFE `json:"spiffe,omitempty"`
	// Callback is where the credential is had with MethodCallback: then none is here.
	Callback *Callback `json:"callback,omitempty"`
	// Secrets is where the credential is had with MethodExternalSecrets: then none is here,
	// and SPIFFE is enabled.
	Secrets *Secrets `json:"secrets,omitempty"`
}

// Callback is the operator's endpoint that hands over one machine's credential, once.
type Callback struct {
	// URL takes a POST without a body, and answers with a Credential.
	URL string `json:"url"`
	// Code is sent as a bearer token. It is good for one credential, of this machine.
	// Empty where Audience is set.
	Code string `json:"code,omitempty"`
	// Audience of the JWT-SVID that is sent as the bearer token in Code's place.
	Audience string `json:"audience,omitempty"`
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

// Cache names caches on the machine's network, which it does without where they can't be had.
type Cache struct {
	// RegistryMirrors are base URLs that Docker asks before Docker Hub.
	RegistryMirrors []string `json:"registry_mirrors,omitempty"`
	// ActionsURL is the base URL of a server for actions/cache.
	ActionsURL string `json:"actions_url,omitempty"`
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

// Attestation methods.
const (
	AttestJoinToken = "join-token"
	AttestTPM       = "tpm"
)

// AgentPath is where the image has spire-agent.
const AgentPath = "/opt/spire/bin/spire-agent"

// SPIFFE holds what attestation needs.
type SPIFFE struct {
	Enabled bool `json:"enabled"`
	// Method is AttestJoinToken or AttestTPM.
	Method string `json:"method,omitempty"`
	// JoinToken is worth one attestation, with AttestJoinToken.
	JoinToken string `json:"join_token,omitempty"`
	// SPIFFEID that the machine is to have; another one is refused.
	SPIFFEID string `json:"spiffe_id,omitempty"`
	// TPMDevice with AttestTPM; default /dev/tpmrm0.
	TPMDevice string `json:"tpm_device,omitempty"`
	// TrustDomain without spiffe://, e.g. hyperfleet.io.
	TrustDomain string `json:"trust_domain,omitempty"`
	// ServerAddress of the SPIRE server as the machine sees it, host:port.
	ServerAddress string `json:"server_address,omitempty"`
	// TrustBundle in PEM verifies the SPIRE server.
	TrustBundle string `json:"trust_bundle,omitempty"`
	// AgentPath of spire-agent in the machine; default AgentPath.
	AgentPath string `json:"agent_path,omitempty"`
	// DevID is where the machine has its device identity certified, with AttestTPM: it
	// takes a POST of a DevIDRequest and answers with a DevIDCertificate.
	DevID *Callback `json:"devid,omitempty"`
}

// DevIDRequest asks for a certificate over a key that the machine's TPM made (TCG TPM 2.0
// Keys for Device Identity and Attestation, section 6).
type DevIDRequest struct {
	// Public is the key's TPM2B_PUBLIC.
	Public []byte `json:"public"`
	// EKCertificate of the TPM in DER, as far as it has one.
	EKCertificate []byte `json:"ek_certificate,omitempty"`
}

// DevIDCertificate is the answer to a DevIDRequest.
type DevIDCertificate struct {
	// Chain in PEM, the key's own certificate first.
	Chain string `json:"chain"`
}

// SecretsVault is the secrets manager Vault, and OpenBao too.
const SecretsVault = "vault"

// Ways to log in to a secrets manager with a SPIFFE identity.
const (
	SecretsAuthJWT  = "jwt"
	SecretsAuthCert = "cert"
)

// Secrets says where in a secrets manager the machine's credential is, and how the machine
// logs in. Nothing of it is secret.
type Secrets struct {
	// Manager is SecretsVault, which is OpenBao too.
	Manager string `json:"manager"`
	// Address is the manager's base URL.
	Address string `json:"address"`
	// CABundle in PEM verifies it; empty means the system's.
	CABundle string `json:"ca_bundle,omitempty"`
	// Namespace of the manager (Vault Enterprise, OpenBao); empty means none.
	Namespace string `json:"namespace,omitempty"`
	// Auth is SecretsAuthJWT (a JWT-SVID of Audience) or SecretsAuthCert (the X.509-SVID as
	// the TLS client's certificate).
	Auth string `json:"auth"`
	// AuthMount is the path that the method is mounted at; default its name.
	AuthMount string `json:"auth_mount,omitempty"`
	// Role to log in with.
	Role string `json:"role,omitempty"`
	// Audience of the JWT-SVID; default the manager's name.
	Audience string `json:"audience,omitempty"`
	// Path of the secret as the HTTP API has it, e.g. secret/data/runners/team-a. Answers of
	// KV version 2 are told from others by their shape.
	Path string `json:"path"`
	// Keys name the keys of the secret that hold the credential's fields; defaults:
	// jit_config, runner_token, registration_url, by the fields' own names.
	Keys map[string]string `json:"keys,omitempty"`
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
	PhaseStarted Phase = "Started"
	// PhaseAttesting: the machine proves who it is.
	PhaseAttesting Phase = "Attesting"
	// PhaseAttested: it has its SVID, and will soon have its credential.
	PhaseAttested    Phase = "Attested"
	PhaseDownloading Phase = "Downloading"
	PhaseConfiguring Phase = "Configuring"
	// PhaseListening: the runner is online and waits for a job.
	PhaseListening Phase = "Listening"
	PhaseRunning   Phase = "Running"
	PhaseFinished  Phase = "Finished"
	PhaseFailed    Phase = "Failed"
)

// Last says whether the machine has said its last word: it powers off.
func (p Phase) Last() bool { return p == PhaseFinished || p == PhaseFailed }

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
	// machine has no means to prove: the image has no spire-agent, or no TPM.
	ReasonAttestationUnavailable = "AttestationUnavailable"
	// ReasonAttestationRefused: the SPIRE server refuses the machine: its join token was used
	// before or has expired, its device identity is not certified, or it was evicted.
	ReasonAttestationRefused = "AttestationRefused"
	// ReasonAttestationTimeout: the SPIRE server was not reached, or gave no SVID, for as
	// long as the machine waits for it.
	ReasonAttestationTimeout = "AttestationTimeout"
	// ReasonTrustDomainMismatch: the server is of another trust domain, or is verified by
	// other keys than the machine was told.
	ReasonTrustDomainMismatch = "TrustDomainMismatch"
	// ReasonClockSkew: by the machine's clock the server's certificates are not valid.
	ReasonClockSkew = "ClockSkew"
	// ReasonIdentityMismatch: the SVID is of another machine.
	ReasonIdentityMismatch = "IdentityMismatch"
	// ReasonSecretsRefused: the secrets manager lets the machine not log in, or not read.
	ReasonSecretsRefused = "SecretsRefused"
	// ReasonSecretMissing: the secret, or a key of it, is not in the secrets manager.
	ReasonSecretMissing = "SecretMissing"
	// ReasonSecretsUnavailable: the secrets manager was not reached for as long as the
	// machine waits for it.
	ReasonSecretsUnavailable = "SecretsUnavailable"
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

	return err
}
