// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import "time"

// Paths in the machine.
const (
	// ConfigPath is the path to which cloud-init writes the Config.
	ConfigPath = "/etc/hyperfleet/runner-config.json"
	// ServicePath is the path of the bootstrap service.
	ServicePath = "/opt/hyperfleet/bootstrap-service"
	// ServiceUnit is the name of the systemd unit that runs the bootstrap service.
	ServiceUnit = "hyperfleet-bootstrap.service"
	// StatusPath is the path of the bootstrap service's last Report.
	StatusPath = "/run/hyperfleet/status.json"
	// StartPath is the path of a file that exists as soon as the service may start. An image that watches
	// the file (with a systemd path unit) does not have to wait for the last stage of cloud-init, which
	// always starts the service.
	StartPath = "/run/hyperfleet/start"
)

// Methods by which a machine gets its credential.
const (
	MethodRunnerToken     = "runner-token"
	MethodCallback        = "callback"
	MethodExternalSecrets = "external-secrets"
)

// Config defines what the bootstrap service runs. An unknown field is an error.
type Config struct {
	// Method is the method by which the machine gets its credential.
	Method string `json:"method"`
	// Platform is the workload type, e.g. github-actions.
	Platform string `json:"platform"`
	// JITConfig is GitHub's just-in-time configuration, which registers one runner once.
	JITConfig string `json:"jit_config,omitempty"`
	// RunnerToken registers the runner if JITConfig is empty.
	RunnerToken string `json:"runner_token,omitempty"`
	// RegistrationURL is the URL with which the runner registers.
	RegistrationURL string `json:"registration_url,omitempty"`
	RunnerName      string `json:"runner_name"`
	RunnerGroup     string `json:"runner_group,omitempty"`
	// Labels are the labels of the runner.
	Labels []string `json:"labels,omitempty"`
	// ExpiresAt is the time at which the credential expires (RFC 3339).
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	Runner    Runner     `json:"runner"`
	// JobID is the only job that the machine runs, if the platform binds machines to jobs.
	JobID string `json:"job_id,omitempty"`
	// Command runs the job if the platform has no runner program (generic). Env is added to the command's
	// environment.
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	// IdleTimeout and JobTimeout are the times after which the machine ends. Zero means never.
	IdleTimeout Duration `json:"idle_timeout,omitempty"`
	JobTimeout  Duration `json:"job_timeout,omitempty"`
	// Environment is added to the environment of the runner and of its job. It contains no secrets.
	Environment map[string]string `json:"environment,omitempty"`
	// Cache names caches for the runner and its job. It is nil if there are none.
	Cache *Cache `json:"cache,omitempty"`
	// Traceparent is the trace context of the machine (W3C Trace Context). The runner gets it as
	// TRACEPARENT, so that the job's own spans can join the trace. It is empty if traces are not
	// exported.
	Traceparent string `json:"traceparent,omitempty"`
	// Report is the endpoint to which phases are reported, in addition to the log and the status file.
	Report *ReportTo `json:"report,omitempty"`
	// SPIFFE configures the attestation of the machine.
	SPIFFE *SPIFFE `json:"spiffe,omitempty"`
	// Callback is the endpoint that returns the credential with MethodCallback. The Config then contains
	// no credential.
	Callback *Callback `json:"callback,omitempty"`
	// Secrets is the location of the credential with MethodExternalSecrets. The Config then contains no
	// credential, and SPIFFE is enabled.
	Secrets *Secrets `json:"secrets,omitempty"`
}

// Callback is the operator's endpoint that returns the credential of one machine once.
type Callback struct {
	// URL is the URL of the endpoint. A POST request without a body returns a Credential.
	URL string `json:"url"`
	// Code is sent as a bearer token. It is valid for one credential of this machine. It is empty if
	// Audience is set.
	Code string `json:"code,omitempty"`
	// Audience is the audience of the JWT-SVID that is sent as a bearer token instead of Code.
	Audience string `json:"audience,omitempty"`
	// CABundle verifies the endpoint, in PEM. If it is empty, the system's certificate authorities are
	// used.
	CABundle string `json:"ca_bundle,omitempty"`
}

// Credential is the secret part of a Config. With MethodCallback, the operator returns it.
type Credential struct {
	JITConfig       string            `json:"jit_config,omitempty"`
	RunnerToken     string            `json:"runner_token,omitempty"`
	RegistrationURL string            `json:"registration_url,omitempty"`
	ExpiresAt       *time.Time        `json:"expires_at,omitempty"`
	JobID           string            `json:"job_id,omitempty"`
	Env             map[string]string `json:"env,omitempty"`
}

// Credential returns the credential in the configuration.
func (c *Config) Credential() Credential {
	return Credential{
		JITConfig: c.JITConfig, RunnerToken: c.RunnerToken, RegistrationURL: c.RegistrationURL,
		ExpiresAt: c.ExpiresAt, JobID: c.JobID, Env: c.Env,
	}
}

// SetCredential replaces the credential in the configuration.
func (c *Config) SetCredential(credential Credential) {
	c.JITConfig, c.RunnerToken, c.RegistrationURL = credential.JITConfig, credential.RunnerToken, credential.RegistrationURL
	c.ExpiresAt, c.JobID, c.Env = credential.ExpiresAt, credential.JobID, credential.Env
}

// Refusal is the response of the operator's endpoint if it returns no credential.
type Refusal struct {
	// Reason is one of the reasons for which a machine ends. It is empty if a retry may succeed.
	Reason string `json:"reason,omitempty"`
	// Message describes the reason. It never contains a credential.
	Message string `json:"message"`
}

// Cache names caches in the machine's network. If a cache is unavailable, the machine does not use it.
type Cache struct {
	// RegistryMirrors are base URLs that Docker tries before Docker Hub.
	RegistryMirrors []string `json:"registry_mirrors,omitempty"`
	// ActionsURL is the base URL of a server for actions/cache.
	ActionsURL string `json:"actions_url,omitempty"`
}

// Runner defines the runner program.
type Runner struct {
	// DownloadURL is only used if InstallPath does not contain the runner, or not its Version.
	DownloadURL string `json:"download_url,omitempty"`
	// DownloadSHA256 is the SHA-256 checksum of the download in hexadecimal. Without it, nothing is
	// downloaded.
	DownloadSHA256 string `json:"download_sha256,omitempty"`
	InstallPath    string `json:"install_path,omitempty"`
	WorkDir        string `json:"work_dir,omitempty"`
	ConfigScript   string `json:"config_script,omitempty"`
	RunScript      string `json:"run_script,omitempty"`
	OS             string `json:"os,omitempty"`
	Arch           string `json:"arch,omitempty"`
	// Version is the release of the runner. If the image contains another one, the machine replaces it with
	// the download. Empty means whatever the image contains.
	Version string `json:"version,omitempty"`
	// Program is the path of the runner program if the platform has one and no scripts.
	Program string `json:"program,omitempty"`
}

// Attestation methods.
const (
	AttestJoinToken = "join-token"
	AttestTPM       = "tpm"
)

// AgentPath is the path of spire-agent in the image.
const AgentPath = "/opt/spire/bin/spire-agent"

// SPIFFE holds the settings of the attestation.
type SPIFFE struct {
	Enabled bool `json:"enabled"`
	// Method is AttestJoinToken or AttestTPM.
	Method string `json:"method,omitempty"`
	// JoinToken is valid for one attestation with AttestJoinToken.
	JoinToken string `json:"join_token,omitempty"`
	// SPIFFEID is the SPIFFE ID that the machine must get. The machine rejects another one.
	SPIFFEID string `json:"spiffe_id,omitempty"`
	// TPMDevice is the path of the TPM's device file with AttestTPM. Default: /dev/tpmrm0.
	TPMDevice string `json:"tpm_device,omitempty"`
	// TrustDomain is the trust domain without spiffe://, e.g. hyperfleet.io.
	TrustDomain string `json:"trust_domain,omitempty"`
	// ServerAddress is the address at which the machine reaches the SPIRE server, as host:port.
	ServerAddress string `json:"server_address,omitempty"`
	// TrustBundle verifies the SPIRE server, in PEM.
	TrustBundle string `json:"trust_bundle,omitempty"`
	// AgentPath is the path of spire-agent in the machine. Default: the constant AgentPath.
	AgentPath string `json:"agent_path,omitempty"`
	// DevID is the endpoint that certifies the machine's device identity with AttestTPM. A POST request
	// with a DevIDRequest returns a DevIDCertificate.
	DevID *Callback `json:"devid,omitempty"`
}

// DevIDRequest requests a certificate for a key that the machine's TPM created (TCG TPM 2.0 Keys for
// Device Identity and Attestation, section 6).
type DevIDRequest struct {
	// Public is the TPM2B_PUBLIC of the key.
	Public []byte `json:"public"`
	// EKCertificate is the endorsement key certificate of the TPM in DER, if the TPM has one.
	EKCertificate []byte `json:"ek_certificate,omitempty"`
}

// DevIDCertificate is the response to a DevIDRequest.
type DevIDCertificate struct {
	// Chain is the certificate chain in PEM. The certificate of the key is first.
	Chain string `json:"chain"`
}

// SecretsVault is the secrets manager HashiCorp Vault or OpenBao.
const SecretsVault = "vault"

// Methods to log in to a secrets manager with a SPIFFE identity.
const (
	SecretsAuthJWT  = "jwt"
	SecretsAuthCert = "cert"
)

// Secrets is the location of the machine's credential in a secrets manager, and how the machine logs in.
// It contains nothing secret.
type Secrets struct {
	// Manager is the secrets manager: SecretsVault.
	Manager string `json:"manager"`
	// Address is the base URL of the secrets manager.
	Address string `json:"address"`
	// CABundle verifies the secrets manager, in PEM. If it is empty, the system's certificate authorities
	// are used.
	CABundle string `json:"ca_bundle,omitempty"`
	// Namespace is the namespace in the secrets manager (Vault Enterprise, OpenBao). It may be empty.
	Namespace string `json:"namespace,omitempty"`
	// Auth is SecretsAuthJWT (with a JWT-SVID for Audience) or SecretsAuthCert (with the X.509-SVID as
	// TLS client certificate).
	Auth string `json:"auth"`
	// AuthMount is the path at which the auth method is mounted. Default: the name of the method.
	AuthMount string `json:"auth_mount,omitempty"`
	// Role is the role to log in with.
	Role string `json:"role,omitempty"`
	// Audience is the audience of the JWT-SVID. Default: the name of the secrets manager.
	Audience string `json:"audience,omitempty"`
	// Path is the path of the secret in the HTTP API, e.g. secret/data/runners/team-a. Responses of KV
	// version 2 are recognized by their structure.
	Path string `json:"path"`
	// Keys maps the credential's fields jit_config, runner_token and registration_url to keys of the
	// secret. Default: the same names.
	Keys map[string]string `json:"keys,omitempty"`
}

// ReportTo is the operator's endpoint for the reports of one machine.
type ReportTo struct {
	// URL is the URL of the endpoint. It accepts a POST request with a Report.
	URL string `json:"url"`
	// Token is sent as a bearer token. It is valid only for the reports of this machine.
	Token string `json:"token"`
	// CABundle verifies the endpoint, in PEM. If it is empty, the system's certificate authorities are
	// used.
	CABundle string `json:"ca_bundle,omitempty"`
}

// Phase is the phase of the bootstrap service.
type Phase string

// Phases in their order. Finished and Failed are the last phases.
const (
	PhaseStarted Phase = "Started"
	// PhaseAttesting means that the machine is proving its identity.
	PhaseAttesting Phase = "Attesting"
	// PhaseAttested means that the machine has its SVID and will get its credential.
	PhaseAttested    Phase = "Attested"
	PhaseDownloading Phase = "Downloading"
	PhaseConfiguring Phase = "Configuring"
	// PhaseListening means that the runner is online and waits for a job.
	PhaseListening Phase = "Listening"
	PhaseRunning   Phase = "Running"
	PhaseFinished  Phase = "Finished"
	PhaseFailed    Phase = "Failed"
)

// Last returns whether the phase is the last one. The machine then powers off.
func (p Phase) Last() bool { return p == PhaseFinished || p == PhaseFailed }

// Reasons for which a machine ends. With JobDone, JobGone, IdleTimeout and Terminated, the phase is
// Finished. With all other reasons, it is Failed.
const (
	ReasonJobDone = "JobDone"
	// ReasonJobGone means that the only job of the machine is not available any more, because it was
	// cancelled or another runner has taken it.
	ReasonJobGone           = "JobGone"
	ReasonCredentialExpired = "CredentialExpired" //nolint:gosec // a reason, not a credential
	// ReasonCredentialRefused means that the operator does not return a credential, because the machine's
	// claim code was already used or its claim has ended.
	ReasonCredentialRefused = "CredentialRefused" //nolint:gosec // a reason, not a credential
	// ReasonCredentialUnavailable means that the operator was unreachable or had no credential until the
	// machine's timeout.
	ReasonCredentialUnavailable = "CredentialUnavailable" //nolint:gosec // a reason, not a credential
	ReasonIdleTimeout           = "IdleTimeout"
	ReasonJobTimeout            = "JobTimeout"
	ReasonConfigInvalid         = "ConfigInvalid"
	ReasonDownloadFailed        = "DownloadFailed"
	ReasonRegistrationError     = "RegistrationFailed"
	ReasonRunnerFailed          = "RunnerFailed"
	ReasonTerminated            = "Terminated"
	// ReasonAttestationUnavailable means that the machine cannot attest as the configuration requires,
	// because the image has no spire-agent or the machine has no TPM.
	ReasonAttestationUnavailable = "AttestationUnavailable"
	// ReasonAttestationRefused means that the SPIRE server rejects the machine. Its join token was
	// already used or has expired, its device identity is not certified, or it was evicted.
	ReasonAttestationRefused = "AttestationRefused"
	// ReasonAttestationTimeout means that the SPIRE server was unreachable or issued no SVID until the
	// machine's timeout.
	ReasonAttestationTimeout = "AttestationTimeout"
	// ReasonTrustDomainMismatch means that the server has another trust domain, or that the configured
	// trust bundle does not verify the server.
	ReasonTrustDomainMismatch = "TrustDomainMismatch"
	// ReasonClockSkew means that the server's certificates are not valid according to the machine's
	// clock.
	ReasonClockSkew = "ClockSkew"
	// ReasonIdentityMismatch means that the SVID is the SVID of another machine.
	ReasonIdentityMismatch = "IdentityMismatch"
	// ReasonSecretsRefused means that the secrets manager does not allow the machine to log in or to read
	// the secret.
	ReasonSecretsRefused = "SecretsRefused"
	// ReasonSecretMissing means that the secret or one of its keys does not exist.
	ReasonSecretMissing = "SecretMissing"
	// ReasonSecretsUnavailable means that the secrets manager was unreachable until the machine's
	// timeout.
	ReasonSecretsUnavailable = "SecretsUnavailable"
)

// Report is the state of the bootstrap service. It never contains a credential.
type Report struct {
	Phase Phase `json:"phase"`
	// Reason is set with the phases Finished and Failed.
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time"`
	// Result is the result of the job in the platform's term, e.g. success. It is set with the phases
	// Finished and Failed if a job ran and its result is known.
	Result string `json:"result,omitempty"`
	// RunnerVersion is the release of the runner, once it has named it.
	RunnerVersion string `json:"runner_version,omitempty"`
	// Log is the end of the runner's output without credentials, at most MaxLog bytes. It is set with the
	// phases Finished and Failed.
	Log string `json:"log,omitempty"`
}

// MaxLog is the maximum size of Report.Log in bytes.
const MaxLog = 64 << 10

// Duration is a time.Duration that is encoded as a string such as "30m0s".
type Duration time.Duration //nolint:recvcheck // UnmarshalText needs a pointer, MarshalText a value

// Value returns the duration as a time.Duration.
func (d Duration) Value() time.Duration { return time.Duration(d) }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)

	return err
}
