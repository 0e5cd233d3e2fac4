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

// Provider is one connected hypervisor environment. It is safe for concurrent use.
//
//nolint:interfacebloat // one verb per operation: docs/guides/write-a-provider.md is shorter for it
type Provider interface {
	// Check connects, authenticates, and verifies that the privileges suffice. An error
	// of kind Rejected names what a person must fix.
	Check(ctx context.Context) (Info, error)

	// Resolve finds the hypervisor's templates that ref means and verifies that machines
	// of spec's resources, network and cloud-init source can be cloned from them. An
	// error of kind NotFound or Rejected names the thing and the fix.
	Resolve(ctx context.Context, ref TemplateRef, want Shape) ([]Template, error)

	// Reserve chooses an id and a node for the machine that spec.Owner owns, or gives those
	// of one that is there already. It makes nothing: the caller writes them down, and puts
	// them into the spec of each call of Ensure and Start. Where the hypervisor places
	// machines itself when they start, the node is empty.
	Reserve(ctx context.Context, spec MachineSpec) (Reservation, error)

	// Ensure makes the machine, exactly once, however often it is called and whoever crashed
	// in between, and does not start it. Every call looks first, then goes as far as it
	// can without waiting, and returns the state reached: Creating (Wake follows), or
	// Prepared: made and configured, never started, without a cloud-init ISO. What is prepared
	// takes disk space, and no memory. A machine that was started stays so. Where the
	// id turns out to be taken by another's machine, the error is IDTaken.
	Ensure(ctx context.Context, spec MachineSpec) (Machine, error)

	// Start powers the machine on, exactly once, and makes it first where it is not yet made,
	// as Ensure does: a machine that need not wait prepared is only started, so that its boot
	// cloud-init ISO can be made beside its disk. It returns Creating (Wake follows), or Running
	// once the machine was powered on. It fails with NoCapacity while the node of a prepared
	// machine has no memory for it. seed is asked for only when the machine's cloud-init ISO
	// must be made, at most once per machine in an undisturbed life.
	Start(ctx context.Context, spec MachineSpec, seed func(context.Context) (Seed, error)) (Machine, error)

	// Get gives the machine's state, from the shared listing where that is fresh enough
	// and from the machine itself before it calls one Stopped. Kind NotFound means that
	// the machine is gone, whatever else was left of it.
	Get(ctx context.Context, ref MachineRef) (Machine, error)

	// List gives everything that carries this operator's ownership, also remains without
	// a machine (state Remains: a cloud-init ISO whose machine is gone).
	List(ctx context.Context) ([]Machine, error)

	// Delete stops and removes the machine and its cloud-init ISO. It verifies the ownership
	// first: what is not the owner's is never touched, and the error is NotOwned. It
	// returns nil when removal is under way (Wake follows) and NotFound once nothing is
	// left.
	Delete(ctx context.Context, ref MachineRef) error

	// Capacity gives what the usable nodes have, what is free, and how many machines this
	// operator has. It is asked every half minute: it costs less than List.
	Capacity(ctx context.Context) (Capacity, error)
}

// Factory connects to one environment. It makes no call: Check does. Close releases
// what the provider holds; machines stay.
type Factory func(Config, Options) (Connection, error)

// Connection is a Provider that can be closed.
type Connection interface {
	Provider
	// Close stops the provider's background work and waits for it.
	Close()
}

// Config is the HypervisorCluster's spec with its secrets read.
type Config struct {
	// Name of the HypervisorCluster, part of each machine's ownership.
	Name string
	// Endpoint is the API's base URL.
	Endpoint string
	// Credentials to authenticate with.
	Credentials Credentials
	// TLS is the verification of the server, with the client certificate if there is one.
	TLS *tls.Config
	// Nodes that may be used; none means all.
	Nodes []string
	// DefaultStorage, ISOStorage, DefaultNetwork and ResourcePool as in the spec.
	DefaultStorage, ISOStorage, DefaultNetwork, ResourcePool string
	// IDMin and IDMax bound the ids given to machines, both included.
	IDMin, IDMax int
	// ClonesPerStorage and CallsPerNode bound the load.
	ClonesPerStorage, CallsPerNode int
	// Tags put on each machine, beside the ownership's.
	Tags map[string]string
	// Kubeconfig leads to the API server of a hypervisor on Kubernetes; empty means the
	// operator's own. Namespace is where its machines are made, and NodeSelector says by
	// labels which of its nodes may be used.
	Kubeconfig   []byte
	Namespace    string
	NodeSelector map[string]string
}

// Credentials are the secrets of a cluster. Exactly one of token and password is set,
// or neither where a client certificate suffices.
type Credentials struct {
	TokenID, TokenSecret, Username, Password string
}

// Options are what a provider needs of its process.
type Options struct {
	// OperatorUID is the identity that this operator marks its machines with.
	OperatorUID string
	// Wake is called, from any goroutine, when a machine of the owner is worth a look.
	Wake func(Owner)
	// ListInterval is how old the shared listing may be. Default: 2 s while machines are
	// being made or removed, at most 10 s.
	ListInterval time.Duration
	// TaskInterval is how often running tasks are looked at. Default: 250 ms.
	TaskInterval time.Duration
	// Transport wraps the HTTP transport, for metrics and traces. May be nil.
	Transport func(http.RoundTripper) http.RoundTripper
	// Claimed gives the ids that claims already hold, so that they are not given again
	// after a restart. It is asked once, before the first id is given. May be nil.
	Claimed func(context.Context) ([]int, error)
	// SnippetsPath is the directory where the snippets storage of cloud-init source
	// builtin is mounted; empty means that the source can't be used.
	SnippetsPath string
	// Clock tells the time. Default: the real one.
	Clock clock.WithTicker
}

// Info is what Check saw.
type Info struct {
	// Product is the name of the hypervisor's software, for people.
	Product string
	// Version of the hypervisor's software.
	Version string
	// Nodes that are usable, online or not.
	Nodes []Node
	// NodesHidden says that the credentials do not suffice to see the nodes, and that
	// machines can be made all the same.
	NodesHidden bool
	// Warnings that do not stop anything, for people.
	Warnings []string
}

// Node is one host of the environment.
type Node struct {
	Name   string
	Online bool
	// Trouble says why it is not online, for people.
	Trouble string
	// SetAside says what is not used of it for a while, after failures in a row, and why.
	SetAside []string
	// Free is what is not taken by running machines.
	Free Resources
	// Total is what the node has.
	Total Resources
}

// Resources are amounts.
type Resources struct {
	// CPU in cores.
	CPU int64
	// Memory and Disk in bytes.
	Memory, Disk int64
}

// Capacity is what the usable nodes have together and one by one.
type Capacity struct {
	Nodes []Node
	Free  Resources
	Total Resources
	// Machines is how many machines carry this operator's ownership, on all nodes and in
	// every state but Remains.
	Machines int
}

// TemplateRef names a template of the hypervisor: by id or by name.
type TemplateRef struct {
	ID   int
	Name string
	// Kind and Namespace belong to hypervisors whose templates are objects of several
	// kinds: one of the kinds below. Empty on others.
	Kind, Namespace string
	// PullSecret names what an image is fetched with, if it needs that.
	PullSecret string
}

// Kinds of templates on Kubernetes.
const (
	// TemplateImage is a disk in a container image; Name is the image.
	TemplateImage = "ContainerDisk"
	// TemplateDataSource is a DataSource of the Containerized Data Importer.
	TemplateDataSource = "DataSource"
	// TemplateVolume is a PersistentVolumeClaim that is cloned.
	TemplateVolume = "PersistentVolumeClaim"
)

// Template is one template found.
type Template struct {
	ID   int
	Name string
	Node string
	// Storage of the first disk, and whether it is shared between nodes.
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

// Shape is what a machine looks like, apart from whose it is.
type Shape struct {
	CPU int
	// Memory and Disk in bytes; Disk 0 keeps the template's.
	Memory, Disk int64
	// Linked shares the template's disks.
	Linked bool
	// Storage for full clones; empty means the cluster's default.
	Storage string
	// Bridge and VLAN of the first network device; empty and 0 keep the cluster's
	// default and no tag.
	Bridge string
	VLAN   int
	// TPM gives the machine a TPM 2.0 of its own: one that no other machine has or had, with a
	// certificate of its endorsement key. Without it a template's is kept as it is.
	TPM bool
	// CloudInitSource is SourceNoCloud or SourceBuiltin; SnippetsStorage and SnippetsPath belong to
	// the latter.
	CloudInitSource, SnippetsStorage string
}

// Owner is the identity of a machine: the claim it was made for. It is written on the
// machine in the same call that makes it.
type Owner struct {
	Namespace, Name, UID string
	Pool                 string
}

// MachineRef names a machine. Its node is looked up: machines migrate.
type MachineRef struct {
	ID    int
	Owner Owner
	// Suspect tells Get that the machine has said that it powers off, so that it is worth
	// asking the machine itself before the shared listing shows it.
	Suspect bool
}

// MachineSpec is a machine wanted.
type MachineSpec struct {
	Owner Owner
	// ID reserved before; 0 when one is reserved.
	ID int
	// Node reserved with ID.
	Node string
	// Hostname is the machine's name on the hypervisor.
	Hostname string
	Template TemplateRef
	Shape    Shape
	// Strategy by which a node is chosen when an id is reserved. Default: Spread.
	Strategy Strategy
	// Standby says that the machine is not to be started soon: Reserve chooses its node by
	// the memory that the node has, not by what is free of it now.
	Standby bool
	// Builtin holds what the builtin source passes as options.
	Network NetworkOptions
}

// Reservation is where a machine is to be made.
type Reservation struct {
	ID int
	// Node is empty where the hypervisor chooses it when it starts the machine.
	Node string
}

// Strategy is how machines are placed on nodes.
type Strategy string

// Strategies.
const (
	// Spread puts a machine where the most room is. It is the zero value's meaning.
	Spread Strategy = "Spread"
	// Pack puts a machine where the least room is that suffices, so that one node is
	// filled after the other.
	Pack Strategy = "Pack"
)

// NetworkOptions are network settings for hypervisors that write the guest's network
// themselves (builtin).
type NetworkOptions struct {
	// Addresses in CIDR notation, one of each family at most; none for DHCP.
	Addresses []string
	// Gateways, one of each family at most.
	Gateways []string
	Servers  []string
	Search   []string
}

// Seed is what a machine's cloud-init ISO holds: a NoCloud seed.
type Seed struct {
	UserData, MetaData, NetworkConfig []byte
	// Files are further files on the cloud-init ISO, by name.
	Files map[string][]byte
}

// State is how far a machine is.
type State string

// States of a machine.
const (
	// StateCreating: it is being cloned, configured or started.
	StateCreating State = "Creating"
	// StatePrepared: it is made and configured; it was never started and has no
	// cloud-init ISO.
	StatePrepared State = "Prepared"
	// StateRunning: it is powered on.
	StateRunning State = "Running"
	// StateStopped: it was powered off after it ran, confirmed with the machine itself.
	StateStopped State = "Stopped"
	// StateDeleting: it is being removed.
	StateDeleting State = "Deleting"
	// StateRemains: the machine is gone, its cloud-init ISO is not.
	StateRemains State = "Remains"
)

// Machine is a machine as last seen.
type Machine struct {
	ID    int
	Name  string
	Node  string
	Owner Owner
	State State
	// Created is when the clone was asked for.
	Created time.Time
	// Cloned says that its clone is whole. Ensure and Start fill it.
	Cloned bool
	// MAC and IP of the first network device, if known. IP is filled by Get once the
	// guest's agent reports one, and never waited for.
	MAC, IP string
	// Message says in words what is under way.
	Message string
}
