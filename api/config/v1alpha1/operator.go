// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "time"

// The API version and the kind of the configuration file.
const (
	APIVersion         = "config.hyperfleet.io/v1alpha1"
	KindOperatorConfig = "OperatorConfig"
)

// OperatorConfig configures `hyperfleet operator`.
type OperatorConfig struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`

	// OperatorUID identifies the machines of this operator in their ownership records. Two operators on
	// one hypervisor need different UIDs. Default: a UID made of the cluster (the UID of the namespace
	// kube-system) and Namespace, so that it stays the same when the operator is reinstalled.
	OperatorUID string `yaml:"operatorUID"`
	// Namespace is the namespace of the operator, of its Lease and its own Secrets, and the default
	// namespace for the Secrets of a HypervisorCluster.
	Namespace string `yaml:"namespace"`
	// Controllers are the areas (groups of controllers) that run: runners, networking, hosts, bridge.
	// Default: all. Two operators on one cluster must not run the same area, unless they are replicas that
	// elect a leader.
	Controllers []string `yaml:"controllers"`
	// Namespaces are the namespaces whose objects this operator reconciles. Default: all. Several operators can
	// share the work of one API server if each has its own namespaces and its own shard.name. Only the area runners
	// can be divided.
	Namespaces []string `yaml:"namespaces"`
	// Shard describes the operator's part if Namespaces is set.
	Shard Shard `yaml:"shard"`

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

// Shard describes the part of one of several operators that divide namespaces among them.
type Shard struct {
	// Name is the name of the part. It is the end of the name of the Lease, so it must stay the same if the
	// namespaces change. Required with namespaces.
	Name string `yaml:"name"`
	// Operators is the number of operators that use the same HypervisorClusters. Each of them uses its part of
	// spec.limits of a HypervisorCluster, and at least 1.
	Operators int `yaml:"operators"`
}

// Log configures the log.
type Log struct {
	// Level is the lowest level that is logged: DEBUG, INFO, WARN or ERROR. The environment variable
	// LOG_LEVEL also sets it.
	Level string `yaml:"level"`
	// Format is the format of the log: json or text.
	Format string `yaml:"format"`
}

// Endpoint is the address of a server.
type Endpoint struct {
	// BindAddress is the address to listen on, as host:port, or "0" to disable the server.
	BindAddress string `yaml:"bindAddress"`
}

// Metrics configures the metrics server and the labels of metrics.
type Metrics struct {
	// BindAddress is the address to listen on, as host:port, or "0" to disable the server.
	BindAddress string `yaml:"bindAddress"`
	// Secure serves metrics over TLS with a self-signed certificate, only to clients with a token that
	// the API server accepts and with permission to `get` the path /metrics.
	Secure bool `yaml:"secure"`
	// JobLabels are additional labels of the job metrics, besides namespace and pool: repository,
	// workflow. Each value of a label is a separate time series.
	JobLabels []string `yaml:"jobLabels"`
	// MaxJobLabelValues is the maximum number of combinations of values of these labels. Further
	// combinations are counted as "other".
	MaxJobLabelValues int `yaml:"maxJobLabelValues"`
}

// Webhooks configures the server that CI platforms and machines call.
type Webhooks struct {
	// BindAddress is the address to listen on, as host:port, or "0" to disable the server.
	BindAddress string `yaml:"bindAddress"`
	// URL is the base address at which CI platforms reach the server, without a path, e.g.
	// https://hyperfleet.example.com. The operator needs it to request the redelivery of failed webhooks.
	// If it is empty, the operator does not request redeliveries.
	URL string `yaml:"url"`
	// MaxBodyBytes is the maximum size of a request body.
	MaxBodyBytes int64 `yaml:"maxBodyBytes"`
	// CertFile and KeyFile are the paths of the server's certificate and private key in PEM. They are
	// reloaded when they change.
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
	// OwnAuthority serves TLS with the operator's own certificate authority, in the Secret
	// hyperfleet-webhooks-ca, if CertFile is empty. Machines trust this authority, unless guest.caFile
	// names another one.
	OwnAuthority bool `yaml:"ownAuthority"`
	// PlainHTTP serves plain HTTP, for use behind an ingress that terminates TLS. If PlainHTTP, CertFile
	// and OwnAuthority are all unset, the server serves plain HTTP on loopback only.
	PlainHTTP bool `yaml:"plainHTTP"`
}

// Guest configures how machines reach the operator.
type Guest struct {
	// URL is the address at which machines reach the webhook server (see webhooks.bindAddress). If it is empty,
	// machines do not report, and the operator only learns from the CI platform that a runner is online.
	URL string `yaml:"url"`
	// CAFile is the path of the CA bundle with which machines verify the certificate of the webhook server,
	// in PEM. It is reloaded when it changes. Default: the operator's own authority if webhooks.ownAuthority
	// is in use, otherwise the CAs that the machine's image trusts.
	CAFile string `yaml:"caFile"`
	// BootstrapServices are the paths of the bootstrap service's binary for each architecture, in GitHub's
	// names (x64, arm64). Templates with bootstrap.delivery download or iso need them.
	BootstrapServices map[string]string `yaml:"bootstrapServices"`
}

// Identity configures how machines prove their identity. If it is empty, templates with an attestation
// are rejected with a message.
type Identity struct {
	SPIRE SPIRE `yaml:"spire"`
	DevID DevID `yaml:"devID"`
}

// SPIRE configures the SPIRE server that attests machines.
type SPIRE struct {
	// Address is the address of the server's API: unix:///PATH (its admin socket), or host:port. With
	// host:port, the operator authenticates with the SVID from WorkloadAPI, which must be an admin's
	// SVID. An empty address disables attestation.
	Address string `yaml:"address"`
	// WorkloadAPI is the socket of the operator's own SPIRE agent, unix:///PATH. It is required with
	// host:port.
	WorkloadAPI string `yaml:"workloadAPI"`
	// TrustDomain is the trust domain of the server, without spiffe://.
	TrustDomain string `yaml:"trustDomain"`
	// MachineAddress is the address at which machines reach the server, as host:port.
	MachineAddress string `yaml:"machineAddress"`
	// Timeout is the timeout of one call.
	Timeout time.Duration `yaml:"timeout"`
}

// DevID configures the certificate authority that certifies the device identities of machines with a
// TPM.
type DevID struct {
	// CertFile and KeyFile are the paths of the authority's certificate and private key in PEM. The SPIRE
	// server needs the same certificate as devid_ca_path. If both are empty, the attestation method tpm
	// is rejected with a message.
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
}

// LeaderElection configures leader election, so that one of several replicas acts.
type LeaderElection struct {
	// Enabled enables leader election. Without leader election, only one replica may run.
	Enabled bool `yaml:"enabled"`
	// LeaseDuration is the time after which other replicas try to become leader if the leader does not
	// renew its Lease.
	LeaseDuration time.Duration `yaml:"leaseDuration"`
	// RenewDeadline is the time for which a leader tries to renew its Lease before it stops.
	RenewDeadline time.Duration `yaml:"renewDeadline"`
	// RetryPeriod is the interval between attempts to acquire or renew the Lease.
	RetryPeriod time.Duration `yaml:"retryPeriod"`
}

// Runners configures the runners area.
type Runners struct {
	// IncludeNamespaceInHostname adds the namespace to the host names of machines: NAMESPACE-CLAIM.
	IncludeNamespaceInHostname bool `yaml:"includeNamespaceInHostname"`
	// Concurrency is the number of claims that are reconciled at a time.
	Concurrency int `yaml:"concurrency"`
	// MaxAttempts is the number of failed attempts to create a machine, on any node, after which its
	// claim fails and its pool creates another one. 0 means no limit.
	MaxAttempts int `yaml:"maxAttempts"`
	// ClusterInterval is the interval at which a hypervisor is checked. Rotated credentials are used
	// after at most this time.
	ClusterInterval time.Duration `yaml:"clusterInterval"`
	// TemplateInterval is the interval at which a template is looked up on the hypervisor.
	TemplateInterval time.Duration `yaml:"templateInterval"`
	// OrphanInterval is the interval at which the operator looks for orphans: objects on hypervisors and
	// CI platforms that have its ownership record but no claim.
	OrphanInterval time.Duration `yaml:"orphanInterval"`
	// OrphanAge is how long an object must have had no claim before it is deleted.
	OrphanAge time.Duration `yaml:"orphanAge"`
	// OrphanDryRun only logs the orphans that would be deleted and deletes nothing.
	OrphanDryRun bool `yaml:"orphanDryRun"`
	// TaskInterval is the interval at which running hypervisor tasks are polled.
	TaskInterval time.Duration `yaml:"taskInterval"`
	// ListInterval is the maximum age of a list of the hypervisor's machines.
	ListInterval time.Duration `yaml:"listInterval"`
	// JobRetention is how long a completed RunnerJob is kept.
	JobRetention time.Duration `yaml:"jobRetention"`
	// Logs configures where the ends of runners' logs are stored.
	Logs RunnerLogs `yaml:"logs"`
	// JobSilence is how long a job may have no update before the operator requests the job's state from the
	// platform.
	JobSilence time.Duration `yaml:"jobSilence"`
	// PlatformURLs are the URLs of additional CI platform servers that the operator trusts, such as
	// https://github.example.com. They may have private addresses. The operator sends them credentials from
	// Secrets that do not have the annotation hyperfleet.io/allowed-servers.
	PlatformURLs []string `yaml:"platformURLs"`
	// PlatformNetworks are private networks, such as 10.20.0.0/16, in which the operator may connect to
	// servers that users specify. Outside of them, it connects to such servers only at public addresses.
	PlatformNetworks []string `yaml:"platformNetworks"`
	// PlatformCAFile is the path of a CA bundle that verifies CI platforms in addition to the system's
	// certificate authorities, in PEM.
	PlatformCAFile string `yaml:"platformCAFile"`
	// SnippetsPath is the path at which the snippets storage for cloud-init source builtin is mounted.
	SnippetsPath string `yaml:"snippetsPath"`
}

// RunnerLogs configures where the ends of runners' logs are stored. At most 64 KiB of each log are
// stored.
type RunnerLogs struct {
	// KeepIn is the storage: cluster (in a RunnerLog that is kept as long as the job's RunnerJob), store
	// (in an object store, with a RunnerLog that names the location) or nowhere.
	KeepIn string `yaml:"keepIn"`
	// Store configures the object store.
	Store LogStore `yaml:"store"`
}

// Values of RunnerLogs.KeepIn.
const (
	LogsInCluster = "cluster"
	LogsInStore   = "store"
	LogsNowhere   = "nowhere"
)

// LogStore is a bucket of S3-compatible storage. Objects in the bucket are never deleted by the
// operator. Add a lifecycle rule to the bucket.
type LogStore struct {
	// Endpoint is the base URL of the object store, such as https://s3.eu-central-1.amazonaws.com.
	Endpoint string `yaml:"endpoint"`
	// Region is the region for which requests are signed.
	Region string `yaml:"region"`
	// Bucket is the name of the bucket, which must exist.
	Bucket string `yaml:"bucket"`
	// Prefix is the prefix of all keys, such as hyperfleet/. The key of a log is
	// PREFIXNAMESPACE/MACHINE-HASH.log.
	Prefix string `yaml:"prefix"`
	// Secret is the name of a Secret in the operator's namespace with the keys accessKeyId and
	// secretAccessKey, and optionally sessionToken.
	Secret string `yaml:"secret"`
	// CAFile is the path of a CA bundle that verifies the store in addition to the system's certificate
	// authorities, in PEM.
	CAFile string `yaml:"caFile"`
}

// Networking configures the networking area.
type Networking struct {
	// Concurrency is the number of machines that are reconciled at a time.
	Concurrency int `yaml:"concurrency"`
}

// Bridge configures the bridge area.
type Bridge struct {
	// Concurrency is the number of bridges that are reconciled at a time.
	Concurrency int `yaml:"concurrency"`
	// HyperShiftNamespace is the namespace of the HyperShift operator.
	HyperShiftNamespace string `yaml:"hyperShiftNamespace"`
	// MetalLBNamespace is the namespace of MetalLB, in which its pools must be.
	MetalLBNamespace string `yaml:"metalLBNamespace"`
	// AddressRanges are CIDRs, or two addresses with a hyphen between them, for which a bridge may create
	// its own IPAddressPool if no pool has its address. If it is empty, a bridge can only use addresses
	// of existing pools.
	AddressRanges []string `yaml:"addressRanges"`
	// RegistryCAFile is the path of a CA bundle that verifies registries in addition to the system's
	// certificate authorities, in PEM.
	RegistryCAFile string `yaml:"registryCAFile"`
	// CSRApproval approves the certificates of DPU workers in hosted clusters after strict checks.
	CSRApproval bool `yaml:"csrApproval"`
}

// Hosts configures the hosts area: its concurrency, timeouts and retries, and the configuration that is
// pushed to the hosts of each kind. One digest covers the configuration of all hosts of a kind, so a
// change of any part is rolled out to all of them, as their HostFleets define.
type Hosts struct {
	// Concurrency is the number of hosts that are reconciled at a time.
	Concurrency int `yaml:"concurrency"`
	// Pushes is the maximum number of hosts that the operator pushes to or checks at a time.
	Pushes int `yaml:"pushes"`
	// ProbeInterval is the interval at which the operator checks that all parts on a host are unchanged.
	// 0 disables these checks.
	ProbeInterval time.Duration `yaml:"probeInterval"`
	// ScriptTimeout is the timeout of one script on a host.
	ScriptTimeout time.Duration `yaml:"scriptTimeout"`
	// MaxUpdateAttempts is the number of failed pushes of one configuration after which a host has
	// failed.
	MaxUpdateAttempts int `yaml:"maxUpdateAttempts"`
	// MaxBootstrapAttempts is the number of failed first pushes to a new host after which the host has
	// failed.
	MaxBootstrapAttempts int `yaml:"maxBootstrapAttempts"`
	// RetryBase is the delay after the first failure. Each further failure doubles the delay, up to
	// RetryCap.
	RetryBase time.Duration `yaml:"retryBase"`
	// RetryCap is the maximum delay between two attempts.
	RetryCap time.Duration `yaml:"retryCap"`
	// Linux is the configuration of LinuxMachines.
	Linux LinuxHosts `yaml:"linux"`
	// Mac is the configuration of ScalewayAppleSiliconMachines.
	Mac MacHosts `yaml:"mac"`
}

// LinuxHosts is the configuration of all LinuxMachines. Without agentFile, nothing is pushed to them.
type LinuxHosts struct {
	// AgentFile is the path of the program that runs VMs on the hosts. If it is empty, nothing is pushed
	// to LinuxMachines.
	AgentFile string `yaml:"agentFile"`
	// MaxPods is the maximum number of VMs on a host.
	MaxPods int `yaml:"maxPods"`
	// NodeLabels are the labels of the hosts' Nodes.
	NodeLabels map[string]string `yaml:"nodeLabels"`
	// NodeExporterFile is the path of the program node_exporter.
	NodeExporterFile string `yaml:"nodeExporterFile"`
	// VMCIDR is the network of the VMs on a host's bridge.
	VMCIDR string `yaml:"vmCIDR"`
	// VMEgressCIDRs are networks that VMs may reach although they are blocked by default.
	VMEgressCIDRs []string `yaml:"vmEgressCIDRs"`
	// VMDNSIP is the address of a DNS server that VMs may reach.
	VMDNSIP string `yaml:"vmDNSIP"`
	// Tailnet is the tailnet that the hosts join.
	Tailnet Tailnet `yaml:"tailnet"`
}

// Tailnet configures how hosts join a tailnet.
type Tailnet struct {
	// Enabled installs tailscale on the hosts and lets them join the tailnet.
	Enabled bool `yaml:"enabled"`
	// CLIFile and DaemonFile are the paths of the programs tailscale and tailscaled.
	CLIFile    string `yaml:"cliFile"`
	DaemonFile string `yaml:"daemonFile"`
	// Tags are the tags of the hosts, such as tag:host.
	Tags []string `yaml:"tags"`
	// AcceptRoutes lets hosts use the routes that other machines in the tailnet advertise.
	AcceptRoutes bool `yaml:"acceptRoutes"`
}

// Names of the areas.
const (
	AreaRunners    = "runners"
	AreaNetworking = "networking"
	AreaHosts      = "hosts"
	AreaBridge     = "bridge"
)

// LeasePrefix is the beginning of the names of the Leases and Deployments of operators.
const LeasePrefix = "hyperfleet-"

// Areas returns the names of all areas.
func Areas() []string { return []string{AreaRunners, AreaNetworking, AreaHosts, AreaBridge} }

// Default returns the configuration without a file, environment variables and flags.
func Default() OperatorConfig {
	return OperatorConfig{
		APIVersion:  APIVersion,
		Kind:        KindOperatorConfig,
		Namespace:   "hyperfleet-system",
		Controllers: Areas(),
		Shard:       Shard{Operators: 1},
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
