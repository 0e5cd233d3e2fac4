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
	// Controllers are the areas that run. Default: all. Two operators on one cluster must not
	// run the same area, unless they are replicas that elect a leader.
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
	Bridge         Bridge         `json:"bridge"`
	Hosts          Hosts          `json:"hosts"`
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

// Bridge configures the bridge area.
type Bridge struct {
	// Concurrency is how many bridges are worked on at a time.
	Concurrency int `json:"concurrency"`
	// HyperShiftNamespace is where HyperShift's operator runs.
	HyperShiftNamespace string `json:"hyperShiftNamespace"`
	// MetalLBNamespace is where MetalLB runs, which wants its pools there.
	MetalLBNamespace string `json:"metalLBNamespace"`
	// AddressRanges are CIDRs, or two IPv4 addresses with a hyphen between them, out of which
	// a bridge may make an IPAddressPool of its own when no pool has its address. Empty: only
	// addresses of pools that are there may be used.
	AddressRanges []string `json:"addressRanges"`
	// RegistryCAFile verifies registries beside the system's authorities, in PEM.
	RegistryCAFile string `json:"registryCAFile"`
	// CSRApproval approves the certificates of DPU workers in hosted clusters, after strict
	// checks.
	CSRApproval bool `json:"csrApproval"`
}

// Hosts configures the hosts area: how it works, and what is brought to the hosts of each
// kind. What is brought is in one digest for all hosts of a kind: a change of any of it is
// rolled out to all of them, as their HostFleets say.
type Hosts struct {
	// Concurrency is how many hosts are worked on at a time, and Pushes how many are pushed
	// to or probed.
	Concurrency int `json:"concurrency"`
	Pushes      int `json:"pushes"`
	// ProbeInterval is how often a host is asked whether all parts still are as they were
	// left. 0 turns that off.
	ProbeInterval time.Duration `json:"probeInterval"`
	// ScriptTimeout bounds one script at a host.
	ScriptTimeout time.Duration `json:"scriptTimeout"`
	// MaxUpdateAttempts is how many times a host may refuse one configuration before it has
	// failed for good, and MaxBootstrapAttempts how many times its first boot.
	MaxUpdateAttempts    int `json:"maxUpdateAttempts"`
	MaxBootstrapAttempts int `json:"maxBootstrapAttempts"`
	// RetryBase is how long is waited after the first failure; each further one doubles it, up
	// to RetryCap.
	RetryBase time.Duration `json:"retryBase"`
	RetryCap  time.Duration `json:"retryCap"`
	// Linux is what LinuxMachines get.
	Linux LinuxHosts `json:"linux"`
	// Mac is what ScalewayAppleSiliconMachines get.
	Mac MacHosts `json:"mac"`
}

// LinuxHosts is what all LinuxMachines get. Without an agent there are none.
type LinuxHosts struct {
	// AgentFile is the program that runs machines. Empty: nothing is brought to LinuxMachines.
	AgentFile string `json:"agentFile"`
	// MaxPods is the most machines at a time on one host.
	MaxPods int `json:"maxPods"`
	// NodeLabels of the hosts' Nodes.
	NodeLabels map[string]string `json:"nodeLabels"`
	// NodeExporterFile is node_exporter.
	NodeExporterFile string `json:"nodeExporterFile"`
	// VMCIDR is the network of the machines on a host's bridge.
	VMCIDR string `json:"vmCIDR"`
	// VMEgressCIDRs are networks that machines may reach of those that are shut to them, and
	// VMDNSIP is a DNS server. Empty for none.
	VMEgressCIDRs []string `json:"vmEgressCIDRs"`
	VMDNSIP       string   `json:"vmDNSIP"`
	// Tailnet the hosts are in.
	Tailnet Tailnet `json:"tailnet"`
}

// Tailnet is how hosts are in a tailnet.
type Tailnet struct {
	Enabled bool `json:"enabled"`
	// CLIFile and DaemonFile are tailscale and tailscaled.
	CLIFile    string `json:"cliFile"`
	DaemonFile string `json:"daemonFile"`
	// Tags of the hosts, such as tag:host.
	Tags         []string `json:"tags"`
	AcceptRoutes bool     `json:"acceptRoutes"`
}

// Names of the areas.
const (
	AreaRunners    = "runners"
	AreaNetworking = "networking"
	AreaHosts      = "hosts"
	AreaBridge     = "bridge"
)

// Areas are all that an operator may run.
func Areas() []string { return []string{AreaRunners, AreaNetworking, AreaHosts, AreaBridge} }

// Default is the configuration without file, environment and flags.
func Default() OperatorConfig {
	return OperatorConfig{
		APIVersion:  APIVersion,
		Kind:        KindOperatorConfig,
		Namespace:   "hyperfleet-system",
		Controllers: Areas(),
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
		Bridge: Bridge{
			Concurrency: 16, HyperShiftNamespace: "hypershift", MetalLBNamespace: "metallb-system",
			AddressRanges: []string{"0.0.0.0/0"},
		},
		Hosts: Hosts{
			Concurrency:          16,
			Pushes:               32,
			ProbeInterval:        30 * time.Minute,
			ScriptTimeout:        15 * time.Minute,
			MaxUpdateAttempts:    5,
			MaxBootstrapAttempts: 8,
			RetryBase:            time.Minute,
			RetryCap:             30 * time.Minute,
			Linux:                LinuxHosts{MaxPods: 16},
			Mac:                  MacHosts{MaxPods: 2},
		},
	}
}
