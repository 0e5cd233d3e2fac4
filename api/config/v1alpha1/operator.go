// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "time"

// Identity of the configuration file.
const (
	APIVersion         = "config.hyperfleet.io/v1alpha1"
	KindOperatorConfig = "OperatorConfig"
)

// OperatorConfig configures `hyperfleet operator`.
type OperatorConfig struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// OperatorUID marks the machines of this operator. Two operators on one hypervisor
	// need two. Default: the UID of the operator's own namespace.
	OperatorUID string `json:"operatorUID"`
	// Namespace the operator runs in: its Lease, its own Secrets, and the default
	// namespace of a HypervisorCluster's Secrets.
	Namespace string `json:"namespace"`
	// Controllers are the areas that run.
	Controllers []string `json:"controllers"`

	Log            Log            `json:"log"`
	Metrics        Endpoint       `json:"metrics"`
	Health         Endpoint       `json:"health"`
	Webhooks       Webhooks       `json:"webhooks"`
	Guest          Guest          `json:"guest"`
	Identity       Identity       `json:"identity"`
	LeaderElection LeaderElection `json:"leaderElection"`
	Runners        Runners        `json:"runners"`
	Networking     Networking     `json:"networking"`
}

// Log says what is logged and how.
type Log struct {
	// Level is DEBUG, INFO, WARN or ERROR. The variable LOG_LEVEL sets it as well.
	Level string `json:"level"`
	// Format is json or text.
	Format string `json:"format"`
}

// Endpoint is where a server listens.
type Endpoint struct {
	// BindAddress as host:port; "0" switches the server off.
	BindAddress string `json:"bindAddress"`
}

// Webhooks is the server that CI platforms and machines call.
type Webhooks struct {
	// BindAddress as host:port; "0" switches the server off.
	BindAddress string `json:"bindAddress"`
	// URL of the server as CI platforms know it, without a path, e.g.
	// https://hyperfleet.example.com. It is for asking a platform to deliver failed
	// webhooks again; empty means that this is not done.
	URL string `json:"url"`
	// MaxBodyBytes bounds one request's body.
	MaxBodyBytes int64 `json:"maxBodyBytes"`
	// CertFile and KeyFile serve TLS; both empty serves plain HTTP behind an ingress.
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
}

// Guest is how machines reach the operator.
type Guest struct {
	// URL of the Webhooks server as machines see it. Empty: machines report nothing, and
	// the CI platform's word alone tells that a runner is online.
	URL string `json:"url"`
	// CAFile verifies URL, in PEM; empty means the machine's own authorities.
	CAFile string `json:"caFile"`
	// BootstrapServices maps GitHub's names of architectures (x64, arm64) to files of the
	// bootstrap service, for the deliveries download and iso.
	BootstrapServices map[string]string `json:"bootstrapServices"`
}

// Identity is how machines prove who they are. Empty: templates with an attestation are
// refused, with words.
type Identity struct {
	SPIRE SPIRE `json:"spire"`
	DevID DevID `json:"devID"`
}

// SPIRE is the SPIRE server that attests machines.
type SPIRE struct {
	// Address of the server's API: unix:///PATH (its admin socket), or host:port (then the
	// operator shows the SVID that it gets from WorkloadAPI, which has to be an admin's).
	// Empty switches attestation off.
	Address string `json:"address"`
	// WorkloadAPI is the socket of the operator's own agent, unix:///PATH; for host:port.
	WorkloadAPI string `json:"workloadAPI"`
	// TrustDomain without spiffe://. The server must be of it.
	TrustDomain string `json:"trustDomain"`
	// MachineAddress of the server as machines see it, host:port.
	MachineAddress string `json:"machineAddress"`
	// Timeout of one call.
	Timeout time.Duration `json:"timeout"`
}

// DevID is the authority that certifies the device identities of machines with a TPM.
type DevID struct {
	// CertFile and KeyFile of the authority in PEM. Its certificate is what the SPIRE server
	// has as devid_ca_path. Both empty: attestation method tpm is refused, with words.
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
}

// LeaderElection lets one of several replicas act.
type LeaderElection struct {
	Enabled       bool          `json:"enabled"`
	LeaseDuration time.Duration `json:"leaseDuration"`
	RenewDeadline time.Duration `json:"renewDeadline"`
	RetryPeriod   time.Duration `json:"retryPeriod"`
}

// Runners configures the runners area.
type Runners struct {
	// IncludeNamespaceInHostname makes host names NAMESPACE-CLAIM.
	IncludeNamespaceInHostname bool `json:"includeNamespaceInHostname"`
	// Concurrency is how many claims are worked on at a time.
	Concurrency int `json:"concurrency"`
	// ClusterInterval is how often a hypervisor is checked; rotated credentials are
	// picked up within it.
	ClusterInterval time.Duration `json:"clusterInterval"`
	// TemplateInterval is how often a template is looked for.
	TemplateInterval time.Duration `json:"templateInterval"`
	// OrphanInterval is how often everything on a hypervisor and a CI platform that
	// carries our mark is compared with the claims.
	OrphanInterval time.Duration `json:"orphanInterval"`
	// TaskInterval is how often running hypervisor tasks are looked at.
	TaskInterval time.Duration `json:"taskInterval"`
	// ListInterval is how old a hypervisor's listing may be.
	ListInterval time.Duration `json:"listInterval"`
	// JobRetention is how long a completed RunnerJob is kept.
	JobRetention time.Duration `json:"jobRetention"`
	// JobSilence is how long a job may go without news before its platform is asked.
	JobSilence time.Duration `json:"jobSilence"`
	// SnippetsPath is where the snippets storage of cloud-init source builtin is mounted.
	SnippetsPath string `json:"snippetsPath"`
}

// Networking configures the networking area.
type Networking struct {
	// Concurrency is how many machines are worked on at a time.
	Concurrency int `json:"concurrency"`
}

// Default is the configuration without file, environment and flags.
func Default() OperatorConfig {
	return OperatorConfig{
		APIVersion:  APIVersion,
		Kind:        KindOperatorConfig,
		Namespace:   "hyperfleet-system",
		Controllers: []string{"runners"},
		Log:         Log{Level: "INFO", Format: "json"},
		Metrics:     Endpoint{BindAddress: ":8080"},
		Health:      Endpoint{BindAddress: ":8081"},
		Webhooks:    Webhooks{BindAddress: ":8443", MaxBodyBytes: 1 << 20},
		Identity:    Identity{SPIRE: SPIRE{TrustDomain: "hyperfleet.io", Timeout: 10 * time.Second}},
		LeaderElection: LeaderElection{
			Enabled: true, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		},
		Runners: Runners{
			Concurrency:      16,
			ClusterInterval:  30 * time.Second,
			TemplateInterval: time.Minute,
			OrphanInterval:   time.Minute,
			TaskInterval:     250 * time.Millisecond,
			ListInterval:     2 * time.Second,
			JobRetention:     24 * time.Hour,
			JobSilence:       5 * time.Minute,
		},
		Networking: Networking{Concurrency: 16},
	}
}
