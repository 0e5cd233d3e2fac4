// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

	"k8s.io/utils/clock"
)

// Provider is the connection to one hypervisor environment. It is safe for concurrent use.
//
//nolint:interfacebloat // one verb per operation: docs/guides/write-a-provider.md is shorter for it
type Provider interface {
	// Check connects, authenticates, and verifies that the privileges are sufficient. An
	// error of kind Rejected names what a person must fix.
	Check(ctx context.Context) (Info, error)

	// Resolve finds the hypervisor's templates that ref refers to. It verifies that machines
	// with the shape's resources, network and cloud-init source can be cloned from them. An
	// error of kind NotFound or Rejected names the object and the fix.
	Resolve(ctx context.Context, ref TemplateRef, shape Shape) ([]Template, error)

	// Reserve chooses an id and a node for the machine of spec.Owner. If the owner already
	// has a machine, Reserve returns the id and the node of that machine. Reserve creates
	// nothing. The caller records the id and the node, and passes them in the spec to each
	// call of Ensure and Start. If the hypervisor chooses a node only when it starts a
	// machine, the node is empty.
	Reserve(ctx context.Context, spec MachineSpec) (Reservation, error)

	// Ensure creates the machine exactly once and does not start it. This holds for any number
	// of calls, and also if a process crashes between them. Each call reads the current state
	// first, does as much as it can without waiting, and returns the state that the machine
	// has reached. The state is Creating (a call of Wake follows) or Prepared. A prepared
	// machine is created and configured, was never started, and has no cloud-init ISO. It uses
	// disk space but no memory. Ensure does not stop a machine that was started. If a machine
	// with another owner has the id, the error is of kind IDTaken.
	Ensure(ctx context.Context, spec MachineSpec) (Machine, error)

	// Start powers the machine on exactly once. If the machine does not exist, Start creates it
	// first, as Ensure does. So the caller need not call Ensure for a machine that starts at
	// once, and the provider can create the cloud-init ISO while it clones the disk. Start
	// returns Creating (a call of Wake follows), or Running once the machine was powered on.
	// It fails with NoCapacity while the node of a prepared machine has too little free memory
	// for it. Start calls seed only when it has to create the machine's cloud-init ISO. Unless
	// a process crashes, it calls seed at most once per machine.
	Start(ctx context.Context, spec MachineSpec, seed func(context.Context) (Seed, error)) (Machine, error)

	// Get returns the state of the machine. It reads the state from the shared machine list if
	// the list is fresh enough. Before Get returns Stopped, it reads the machine itself. An
	// error of kind NotFound means that the machine does not exist. Remains of the machine,
	// such as a cloud-init ISO, can still exist.
	Get(ctx context.Context, ref MachineRef) (Machine, error)

	// List returns everything that carries this operator's ownership. This includes remains
	// without a machine, for example a cloud-init ISO whose machine no longer exists. Remains
	// have the state Remains.
	List(ctx context.Context) ([]Machine, error)

	// Delete stops and deletes the machine and its cloud-init ISO. It verifies the ownership
	// first. If the machine has another owner, Delete does not change it, and the error is of
	// kind NotOwned. Delete returns nil while the deletion is in progress (a call of Wake
	// follows), and an error of kind NotFound once nothing is left.
	Delete(ctx context.Context, ref MachineRef) error

	// Capacity returns the total and the free resources of the usable nodes, and the number of
	// this operator's machines. The operator calls it every 30 seconds, so it must cost less
	// than List.
	Capacity(ctx context.Context) (Capacity, error)
}

// Factory returns a connection to one environment. It makes no call to the hypervisor; Check
// makes the first one.
type Factory func(Config, Options) (Connection, error)

// Connection is a Provider that can be closed.
type Connection interface {
	Provider
	// Close stops the provider's background work and waits until it has stopped. It releases
	// the provider's resources and does not change machines.
	Close()
}

// Config is the HypervisorCluster's spec with the contents of its Secrets.
type Config struct {
	// Name of the HypervisorCluster. The ownership of each machine includes it.
	Name string
	// Endpoint is the API's base URL.
	Endpoint string
	// Credentials to authenticate with.
	Credentials Credentials
	// TLS verifies the server. It holds the client certificate if the cluster has one.
	TLS *tls.Config
	// Nodes that machines may use. Empty means all nodes.
	Nodes []string
	// DefaultStorage, ISOStorage, DefaultNetwork and ResourcePool as in the spec.
	DefaultStorage, ISOStorage, DefaultNetwork, ResourcePool string
	// IDMin and IDMax are the lowest and the highest id that a machine can get.
	IDMin, IDMax int
	// ClonesPerStorage limits the concurrent clones on a storage, and CallsPerNode limits the
	// concurrent calls to a node.
	ClonesPerStorage, CallsPerNode int
	// Tags of each machine, in addition to the tags of the ownership.
	Tags map[string]string
	// Kubeconfig of the API server of a hypervisor that runs on Kubernetes. Empty means the
	// operator's own cluster. Namespace is the namespace of the machines. NodeSelector selects
	// the nodes that machines may use, by their labels.
	Kubeconfig   []byte
	Namespace    string
	NodeSelector map[string]string
}

// Credentials are the credentials of a cluster. Exactly one of token and password is set. If
// a client certificate is sufficient, neither is set.
type Credentials struct {
	TokenID, TokenSecret, Username, Password string
}

// Options are the settings that a provider gets from its process.
type Options struct {
	// OperatorUID identifies this operator in the ownership of its machines.
	OperatorUID string
	// Wake makes the operator reconcile the owner because its machine may have changed. The
	// provider can call it from any goroutine.
	Wake func(Owner)
	// ListInterval is the maximum age of the shared machine list. Default: 2 s while machines
	// are being created or deleted, otherwise at most 10 s.
	ListInterval time.Duration
	// TaskInterval is the poll interval for running tasks. Default: 250 ms.
	TaskInterval time.Duration
	// WrapTransport wraps the HTTP transport for metrics and traces. It may be nil.
	WrapTransport func(http.RoundTripper) http.RoundTripper
	// ListClaimedIDs returns the ids that claims already hold, so that the provider does not
	// reserve them again after a restart. The provider calls it before it reserves the first
	// id, until one call succeeds. It may be nil.
	ListClaimedIDs func(context.Context) ([]int, error)
	// SnippetsPath is the directory at which the snippets storage of cloud-init source
	// builtin is mounted. If it is empty, templates cannot use that source.
	SnippetsPath string
	// Clock is the source of time. Default: the real clock.
	Clock clock.WithTicker
}

// Info is the result of Check.
type Info struct {
	// Product is the name of the hypervisor's software. It is for people.
	Product string
	// Version of the hypervisor's software.
	Version string
	// Nodes that machines may use, online and offline.
	Nodes []Node
	// NodesHidden is true if the credentials do not permit the provider to list the nodes.
	// The provider can still create machines.
	NodesHidden bool
	// Warnings for people. A warning does not prevent the creation of machines.
	Warnings []string
}

// Node is one node of the environment.
type Node struct {
	Name   string
	Online bool
	// OfflineReason explains to people why the node is not online.
	OfflineReason string
	// Exclusions lists what the operator does not use on the node for a while, because it
	// failed several times in a row. Each entry names the reason.
	Exclusions []string
	// Free is Total without the resources of running machines.
	Free Resources
	// Total is all resources of the node.
	Total Resources
}

// Resources are amounts of CPU, memory and disk.
type Resources struct {
	// CPU in cores.
	CPU int64
	// Memory and Disk in bytes.
	Memory, Disk int64
}

// Capacity is the capacity of each usable node and of all of them together.
type Capacity struct {
	Nodes []Node
	Free  Resources
	Total Resources
	// Machines is the number of machines that carry this operator's ownership. It counts the
	// machines on all nodes and in every state except Remains.
	Machines int
}

// TemplateRef refers to a template of the hypervisor by id or by name.
type TemplateRef struct {
	ID   int
	Name string
	// Kind and Namespace are set only for hypervisors whose templates are objects of several
	// kinds. Kind is one of the constants below.
	Kind, Namespace string
	// PullSecret is the name of the image pull Secret, if the image needs one.
	PullSecret string
}

// Kinds of templates on Kubernetes.
const (
	// TemplateImage is a disk in a container image. TemplateRef.Name is the image.
	TemplateImage = "ContainerDisk"
	// TemplateDataSource is a DataSource of the Containerized Data Importer.
	TemplateDataSource = "DataSource"
	// TemplateVolume is a PersistentVolumeClaim that the provider clones.
	TemplateVolume = "PersistentVolumeClaim"
)

// Template is one template that Resolve found.
type Template struct {
	ID   int
	Name string
	Node string
	// Storage holds the first disk. Shared is true if the nodes share the storage.
	Storage string
	Shared  bool
	// DiskBytes is the size of the first disk.
	DiskBytes int64
}

// Cloud-init sources.
const (
	SourceNoCloud = "nocloud"
	SourceBuiltin = "builtin"
)

// Shape is the hardware and the cloud-init source of a machine.
type Shape struct {
	CPU int
	// Memory and Disk in bytes. Disk 0 means the size of the template's disk.
	Memory, Disk int64
	// Linked makes the clone share the template's disks.
	Linked bool
	// Storage of a full clone. Empty means the cluster's default.
	Storage string
	// Bridge and VLAN of the first network device. An empty Bridge means the cluster's
	// default, and VLAN 0 means no VLAN tag.
	Bridge string
	VLAN   int
	// TPM gives the machine its own TPM 2.0, which no other machine has or had. The TPM has a
	// certificate of its endorsement key. If TPM is false, the provider does not change the TPM
	// that the template has or lacks.
	TPM bool
	// CloudInitSource is SourceNoCloud or SourceBuiltin. SnippetsStorage and
	// Options.SnippetsPath belong to SourceBuiltin.
	CloudInitSource, SnippetsStorage string
}

// Owner identifies the MachineClaim that a machine belongs to, and the pool of the claim. The
// call that creates the machine also writes the owner on it.
type Owner struct {
	Namespace, Name, UID string
	Pool                 string
}

// MachineRef refers to a machine. It has no node because machines migrate. The provider looks
// the node up.
type MachineRef struct {
	ID    int
	Owner Owner
	// PowerOffReported is true if the guest has reported that it powers off. Get then reads the
	// machine itself, because the shared machine list may not show the power-off yet.
	PowerOffReported bool
}

// MachineSpec is the desired state of a machine.
type MachineSpec struct {
	Owner Owner
	// ID is the reserved id. It is 0 in a call of Reserve.
	ID int
	// Node is the node that was reserved with ID.
	Node string
	// Hostname is the machine's name on the hypervisor.
	Hostname string
	Template TemplateRef
	Shape    Shape
	// Strategy by which Reserve chooses a node. Default: Spread.
	Strategy Strategy
	// Standby is true if the machine does not start soon. Reserve then chooses its node by the
	// total memory of the node, not by the memory that is free now.
	Standby bool
	// Network holds the network settings that cloud-init source builtin passes as options.
	Network NetworkOptions
}

// Reservation is the id and the node of a machine that will be created.
type Reservation struct {
	ID int
	// Node is empty if the hypervisor chooses the node when it starts the machine.
	Node string
}

// Strategy defines on which node a machine is placed.
type Strategy string

// Strategies.
const (
	// Spread places a machine on the node with the most free capacity. An empty Strategy means
	// Spread.
	Spread Strategy = "Spread"
	// Pack places a machine on the node with the least free capacity that is sufficient, so
	// that the nodes fill up one after the other.
	Pack Strategy = "Pack"
)

// NetworkOptions are the network settings for a hypervisor that writes the guest's network
// configuration itself (cloud-init source builtin).
type NetworkOptions struct {
	// Addresses in CIDR notation, at most one of each family. Empty means DHCP.
	Addresses []string
	// Gateways, at most one of each family.
	Gateways      []string
	DNSServers    []string
	SearchDomains []string
}

// Seed is the content of a machine's cloud-init ISO, in the layout of cloud-init's datasource
// NoCloud.
type Seed struct {
	UserData, MetaData, NetworkConfig []byte
	// Files are additional files on the cloud-init ISO, by name.
	Files map[string][]byte
}

// State is the state of a machine.
type State string

// States of a machine.
const (
	// StateCreating means that the machine is being cloned, configured or started.
	StateCreating State = "Creating"
	// StatePrepared means that the machine is created and configured. It was never started and
	// has no cloud-init ISO.
	StatePrepared State = "Prepared"
	// StateRunning means that the machine is powered on.
	StateRunning State = "Running"
	// StateStopped means that the machine ran and is powered off now. The provider has read
	// this from the machine itself.
	StateStopped State = "Stopped"
	// StateDeleting means that the machine is being deleted.
	StateDeleting State = "Deleting"
	// StateRemains means that the machine no longer exists, but its cloud-init ISO does.
	StateRemains State = "Remains"
)

// Machine is the last observed state of a machine.
type Machine struct {
	ID    int
	Name  string
	Node  string
	Owner Owner
	State State
	// CreatedAt is the time at which the clone was requested.
	CreatedAt time.Time
	// Cloned is true once the clone is complete. Ensure and Start set it.
	Cloned bool
	// MAC and IP of the first network device, if known. Get sets IP once the guest's agent
	// reports an address. No call waits for an address.
	MAC, IP string
	// Message describes to people what is in progress.
	Message string
}
