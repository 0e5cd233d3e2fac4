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
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`

	// OperatorUID marks the machines of this operator. Two operators on one hypervisor
	// need two. Default: made of the cluster (the uid of kube-system) and Namespace, so that it
	// is the same when the operator is installed again.
	OperatorUID string `yaml:"operatorUID"`
	// Namespace the operator runs in: its Lease, its own Secrets, and the default
	// namespace of a HypervisorCluster's Secrets.
	Namespace string `yaml:"namespace"`
	// Controllers are the areas that run. Default: all. Two operators on one cluster must not
	// run the same area, unless they are replicas that elect a leader.
	Controllers []string `yaml:"controllers"`

	Log            Log            `yaml:"log"`
	Metrics        Metrics        `yaml:"metrics"`
	Health         Endpoint       `yaml:"health"`
	Webhooks       Webhooks       `yaml:"webhooks"`
	Guest          Guest          `yaml:"guest"`
	Identity       Identity       `yaml:"identity"`
	LeaderElection LeaderElection `yaml:"leaderElection"`
	Runners        Runners        `yaml:"runners"`
	Networking     Networking     `yaml:"networking"`
	Bridge         Bridge         `yaml:"bridge"`
	Hosts          Hosts          `yaml:"hosts"`
}

// Log says what is logged and how.
type Log struct {
	// Level is DEBUG, INFO, WARN or ERROR. The variable LOG_LEVEL sets it as well.
	Level string `yaml:"level"`
	// Format is json or text.
	Format string `yaml:"format"`
}

// Endpoint is where a server listens.
type Endpoint struct {
	// BindAddress as host:port; "0" switches the server off.
	BindAddress string `yaml:"bindAddress"`
}

// Metrics is where they are served, and what is in them.
type Metrics struct {
	// BindAddress as host:port; "0" switches the server off.
	BindAddress string `yaml:"bindAddress"`
	// Secure serves them by TLS, with a certificate of the process's own, to those who show
	// a token that the API server knows and who may `get` the path /metrics.
	Secure bool `yaml:"secure"`
	// JobLabels are labels that the metrics of jobs have beside namespace and pool: repository,
	// workflow. Each of their values is a series of its own.
	JobLabels []string `yaml:"jobLabels"`
	// MaxJobLabelValues bounds the combinations of these labels' values; the rest are "other".
	MaxJobLabelValues int `yaml:"maxJobLabelValues"`
}

// Webhooks is the server that CI platforms and machines call.
type Webhooks struct {
	// BindAddress as host:port; "0" switches the server off.
	BindAddress string `yaml:"bindAddress"`
	// URL of the server as CI platforms know it, without a path, e.g.
	// https://hyperfleet.example.com. It is for asking a platform to deliver failed
	// webhooks again; empty means that this is not done.
	URL string `yaml:"url"`
	// MaxBodyBytes bounds one request's body.
	MaxBodyBytes int64 `yaml:"maxBodyBytes"`
	// CertFile and KeyFile in PEM are served, and read again when they change.
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
	// OwnAuthority serves TLS where there is no CertFile, by an authority of the operator's own
	// in the Secret hyperfleet-webhooks-ca. Machines trust it, unless guest.caFile says whom.
	OwnAuthority bool `yaml:"ownAuthority"`
	// PlainHTTP serves in the clear, for an ingress that ends TLS. Without it, and without
	// CertFile and OwnAuthority, there is plain HTTP on loopback alone.
	PlainHTTP bool `yaml:"plainHTTP"`
}

// Guest is how machines reach the operator.
type Guest struct {
	// URL of the Webhooks server as machines see it. Empty: machines report nothing, and
	// the CI platform's word alone tells that a runner is online.
	URL string `yaml:"url"`
	// CAFile verifies URL, in PEM, and is read again when it changes. Empty: the operator's own
	// authority where it serves, or else those of the machine.
	CAFile string `yaml:"caFile"`
	// BootstrapServices maps GitHub's names of architectures (x64, arm64) to files of the
	// bootstrap service, for the deliveries download and iso.
	BootstrapServices map[string]string `yaml:"bootstrapServices"`
}

// Identity is how machines prove who they are. Empty: templates with an attestation are
// refused, with words.
type Identity struct {
	SPIRE SPIRE `yaml:"spire"`
	DevID DevID `yaml:"devID"`
}

// SPIRE is the SPIRE server that attests machines.
type SPIRE struct {
	// Address of the server's API: unix:///PATH (its admin socket), or host:port (then the
	// operator shows the SVID that it gets from WorkloadAPI, which has to be an admin's).
	// Empty switches attestation off.
	Address string `yaml:"address"`
	// WorkloadAPI is the socket of the operator's own agent, unix:///PATH; for host:port.
	WorkloadAPI string `yaml:"workloadAPI"`
	// TrustDomain without spiffe://. The server must be of it.
	TrustDomain string `yaml:"trustDomain"`
	// MachineAddress of the server as machines see it, host:port.
	MachineAddress string `yaml:"machineAddress"`
	// Timeout of one call.
	Timeout time.Duration `yaml:"timeout"`
}

// DevID is the authority that certifies the device identities of machines with a TPM.
type DevID struct {
	// CertFile and KeyFile of the authority in PEM. Its certificate is what the SPIRE server
	// has as devid_ca_path. Both empty: attestation method tpm is refused, with words.
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
}

// LeaderElection lets one of several replicas act.
type LeaderElection struct {
	// Enabled has replicas elect a leader. Without it there must be one replica alone.
	Enabled bool `yaml:"enabled"`
	// LeaseDuration is how long others wait for a leader that is not heard of.
	LeaseDuration time.Duration `yaml:"leaseDuration"`
	// RenewDeadline is how long a leader tries to renew its Lease before it stops.
	RenewDeadline time.Duration `yaml:"renewDeadline"`
	// RetryPeriod is how often the Lease is tried for.
	RetryPeriod time.Duration `yaml:"retryPeriod"`
}

// Runners configures the runners area.
type Runners struct {
	// IncludeNamespaceInHostname makes host names NAMESPACE-CLAIM.
	IncludeNamespaceInHostname bool `yaml:"includeNamespaceInHostname"`
	// Concurrency is how many claims are worked on at a time.
	Concurrency int `yaml:"concurrency"`
	// MaxAttempts is how many times the making of a machine may fail, on whichever nodes,
	// before its claim has failed and its pool makes another. 0: it is tried for ever.
	MaxAttempts int `yaml:"maxAttempts"`
	// ClusterInterval is how often a hypervisor is checked; rotated credentials are
	// picked up within it.
	ClusterInterval time.Duration `yaml:"clusterInterval"`
	// TemplateInterval is how often a template is looked for.
	TemplateInterval time.Duration `yaml:"templateInterval"`
	// OrphanInterval is how often everything on a hypervisor and a CI platform that
	// carries our mark is compared with the claims.
	OrphanInterval time.Duration `yaml:"orphanInterval"`
	// OrphanAge is how long such a thing has to have been without a claim before it is
	// removed.
	OrphanAge time.Duration `yaml:"orphanAge"`
	// OrphanDryRun has what would be removed told in the log, and nothing removed.
	OrphanDryRun bool `yaml:"orphanDryRun"`
	// TaskInterval is how often running hypervisor tasks are looked at.
	TaskInterval time.Duration `yaml:"taskInterval"`
	// ListInterval is how old a hypervisor's listing may be.
	ListInterval time.Duration `yaml:"listInterval"`
	// JobRetention is how long a completed RunnerJob is kept.
	JobRetention time.Duration `yaml:"jobRetention"`
	// Logs says where the ends of runners' logs are kept.
	Logs RunnerLogs `yaml:"logs"`
	// JobSilence is how long a job may go without news before its platform is asked.
	JobSilence time.Duration `yaml:"jobSilence"`
	// PlatformURLs are CI platforms' servers beside the public ones: https://github.example.com.
	// Credentials are sent to them without being annotated for it, whatever their addresses.
	PlatformURLs []string `yaml:"platformURLs"`
	// PlatformNetworks are networks, such as 10.20.0.0/16, that servers may be in which users
	// name. Others are called at public addresses only.
	PlatformNetworks []string `yaml:"platformNetworks"`
	// SnippetsPath is where the snippets storage of cloud-init source builtin is mounted.
	SnippetsPath string `yaml:"snippetsPath"`
}

// RunnerLogs says where the ends of runners' logs are kept, at most 64 KiB of each.
type RunnerLogs struct {
	// KeepIn is cluster (in a RunnerLog, as long as the job's RunnerJob), store (in an object
	// store; the RunnerLog says where) or nowhere.
	KeepIn string `yaml:"keepIn"`
	// Store is the object store.
	Store LogStore `yaml:"store"`
}

// Where logs of runners are kept.
const (
	LogsInCluster = "cluster"
	LogsInStore   = "store"
	LogsNowhere   = "nowhere"
)

// LogStore is a bucket of S3-compatible storage. How long it keeps what is in it is the bucket's
// matter: give it a lifecycle rule.
type LogStore struct {
	// Endpoint is the store's base URL, such as https://s3.eu-central-1.amazonaws.com.
	Endpoint string `yaml:"endpoint"`
	// Region that requests are signed for.
	Region string `yaml:"region"`
	// Bucket must be there.
	Bucket string `yaml:"bucket"`
	// Prefix of all keys, such as hyperfleet/; a log's key is PREFIXNAMESPACE/MACHINE-HASH.log.
	Prefix string `yaml:"prefix"`
	// Secret in the operator's namespace with the keys accessKeyId and secretAccessKey, and
	// sessionToken if there is one.
	Secret string `yaml:"secret"`
	// CAFile verifies the store beside the system's authorities, in PEM.
	CAFile string `yaml:"caFile"`
}

// Networking configures the networking area.
type Networking struct {
	// Concurrency is how many machines are worked on at a time.
	Concurrency int `yaml:"concurrency"`
}

// Bridge configures the bridge area.
type Bridge struct {
	// Concurrency is how many bridges are worked on at a time.
	Concurrency int `yaml:"concurrency"`
	// HyperShiftNamespace is where HyperShift's operator runs.
	HyperShiftNamespace string `yaml:"hyperShiftNamespace"`
	// MetalLBNamespace is where MetalLB runs, which wants its pools there.
	MetalLBNamespace string `yaml:"metalLBNamespace"`
	// AddressRanges are CIDRs, or two addresses with a hyphen between them, out of which
	// a bridge may make an IPAddressPool of its own when no pool has its address. Empty: only
	// addresses of pools that are there may be used.
	AddressRanges []string `yaml:"addressRanges"`
	// RegistryCAFile verifies registries beside the system's authorities, in PEM.
	RegistryCAFile string `yaml:"registryCAFile"`
	// CSRApproval approves the certificates of DPU workers in hosted clusters, after strict
	// checks.
	CSRApproval bool `yaml:"csrApproval"`
}

// Hosts configures the hosts area: how it works, and what is brought to the hosts of each
// kind. What is brought is in one digest for all hosts of a kind: a change of any of it is
// rolled out to all of them, as their HostFleets say.
type Hosts struct {
	// Concurrency is how many hosts are worked on at a time, and Pushes how many are pushed
	// to or probed.
	Concurrency int `yaml:"concurrency"`
	Pushes      int `yaml:"pushes"`
	// ProbeInterval is how often a host is asked whether all parts still are as they were
	// left. 0 turns that off.
	ProbeInterval time.Duration `yaml:"probeInterval"`
	// ScriptTimeout bounds one script at a host.
	ScriptTimeout time.Duration `yaml:"scriptTimeout"`
	// MaxUpdateAttempts is how many times a host may refuse one configuration before it has
	// failed for good, and MaxBootstrapAttempts how many times its first boot.
	MaxUpdateAttempts    int `yaml:"maxUpdateAttempts"`
	MaxBootstrapAttempts int `yaml:"maxBootstrapAttempts"`
	// RetryBase is how long is waited after the first failure; each further one doubles it, up
	// to RetryCap.
	RetryBase time.Duration `yaml:"retryBase"`
	RetryCap  time.Duration `yaml:"retryCap"`
	// Linux is what LinuxMachines get.
	Linux LinuxHosts `yaml:"linux"`
	// Mac is what ScalewayAppleSiliconMachines get.
	Mac MacHosts `yaml:"mac"`
}

// LinuxHosts is what all LinuxMachines get. Without an agent there are none.
type LinuxHosts struct {
	// AgentFile is the program that runs machines. Empty: nothing is brought to LinuxMachines.
	AgentFile string `yaml:"agentFile"`
	// MaxPods is the most machines at a time on one host.
	MaxPods int `yaml:"maxPods"`
	// NodeLabels of the hosts' Nodes.
	NodeLabels map[string]string `yaml:"nodeLabels"`
	// NodeExporterFile is node_exporter.
	NodeExporterFile string `yaml:"nodeExporterFile"`
	// VMCIDR is the network of the machines on a host's bridge.
	VMCIDR string `yaml:"vmCIDR"`
	// VMEgressCIDRs are networks that machines may reach of those that are shut to them, and
	// VMDNSIP is a DNS server. Empty for none.
	VMEgressCIDRs []string `yaml:"vmEgressCIDRs"`
	VMDNSIP       string   `yaml:"vmDNSIP"`
	// Tailnet the hosts are in.
	Tailnet Tailnet `yaml:"tailnet"`
}

// Tailnet is how hosts are in a tailnet.
type Tailnet struct {
	// Enabled brings tailscale to the hosts and has them join.
	Enabled bool `yaml:"enabled"`
	// CLIFile and DaemonFile are tailscale and tailscaled.
	CLIFile    string `yaml:"cliFile"`
	DaemonFile string `yaml:"daemonFile"`
	// Tags of the hosts, such as tag:host.
	Tags []string `yaml:"tags"`
	// AcceptRoutes has hosts use the routes that others in the tailnet offer.
	AcceptRoutes bool `yaml:"acceptRoutes"`
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
		Metrics:     Metrics{BindAddress: ":8080", MaxJobLabelValues: 100},
		Health:      Endpoint{BindAddress: ":8081"},
		Webhooks:    Webhooks{BindAddress: ":8443", MaxBodyBytes: 1 << 20, OwnAuthority: true},
		Identity:    Identity{SPIRE: SPIRE{TrustDomain: "hyperfleet.io", Timeout: 10 * time.Second}},
		LeaderElection: LeaderElection{
			Enabled: true, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		},
		Runners: Runners{
			Concurrency:      16,
			MaxAttempts:      8,
			ClusterInterval:  30 * time.Second,
			TemplateInterval: time.Minute,
			OrphanInterval:   time.Minute,
			OrphanAge:        10 * time.Minute,
			TaskInterval:     250 * time.Millisecond,
			ListInterval:     2 * time.Second,
			JobRetention:     24 * time.Hour,
			Logs:             RunnerLogs{KeepIn: LogsInCluster, Store: LogStore{Region: "us-east-1"}},
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
