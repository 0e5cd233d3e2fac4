// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"context"
	"crypto/tls"
	"io"
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
	// has a machine, Reserve returns the id and the node of that machine. If two machines of
	// the same name would conflict, because they have the same hostname and the same static
	// address, Reserve returns a NewNamesakeError while another owner of the same namespace
	// and name has a machine. If another machine has an address of spec.Network, Reserve, Ensure and
	// Start return the error of Record.CheckAddresses and create nothing. Reserve creates nothing.
	// The caller records the id and the node, and passes them in the spec to each call of Ensure and
	// Start. If the hypervisor chooses a node only when it starts a machine, the node is empty.
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

// MaxConsole is the size in bytes to which the output of a machine's serial console is limited.
const MaxConsole = 64 << 10

// ConsoleReader is implemented by providers that keep the output of machines' serial consoles.
type ConsoleReader interface {
	// ReadConsole returns the end of the output of the machine's serial console, at most MaxConsole
	// bytes. The output is kept until Delete has deleted the machine. An error of kind NotFound
	// means that no output is kept.
	ReadConsole(ctx context.Context, ref MachineRef) ([]byte, error)
}

// Terminal is implemented by providers that can open the live console of a machine.
type Terminal interface {
	// OpenTerminal opens the serial console of a running machine. Text that is written to the result is the
	// input of the console. The console stays open until the result is closed or the machine is off. ctx
	// only limits how long opening it takes. An error of kind NotFound means that the machine does not run.
	OpenTerminal(ctx context.Context, ref MachineRef) (io.ReadWriteCloser, error)
}

// Executor is implemented by providers that can run commands in machines.
type Executor interface {
	// Execute runs a command in a running machine as root, without input, and waits until it ends. If
	// ctx ends first, the command may run on. An error of kind NotFound means that the machine does not
	// run, and one of kind Rejected says what the machine lacks.
	Execute(ctx context.Context, ref MachineRef, command []string) (ExecResult, error)
}

// ConsoleGuide is implemented by providers whose hypervisor has its own tools for the console of a machine.
type ConsoleGuide interface {
	// DescribeConsole returns how a person opens the console of a machine with these tools, also if the machine is off:
	// one or more imperative clauses without a full stop. node is where the machine was seen last.
	DescribeConsole(ref MachineRef, node string) string
}

// Narrowed is implemented by providers that have the methods of all optional interfaces (ConsoleReader,
// Terminal and Executor), although they support only some of them.
type Narrowed interface {
	// Supports reports whether the provider supports the interface that target points to, which is
	// (*ConsoleReader)(nil), (*Terminal)(nil) or (*Executor)(nil).
	Supports(target any) bool
}

// Find returns the provider as the optional interface T. ok is false if the provider does not support it.
func Find[T any](p Provider) (found T, ok bool) {
	found, ok = p.(T)
	if narrowed, isNarrowed := p.(Narrowed); ok && isNarrowed {
		ok = narrowed.Supports((*T)(nil))
	}

	return found, ok
}

// ExecResult is the result of a command in a machine.
type ExecResult struct {
	Stdout, Stderr []byte
	ExitCode       int
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
	// MemoryPercent is the share of a node's memory that running machines and other VMs may have together
	// (Proxmox VE). Zero means all of it.
	MemoryPercent int
	// Tags of each machine, in addition to the tags of the ownership.
	Tags map[string]string
	// Kubeconfig of the API server of a hypervisor that runs on Kubernetes. Empty means the
	// operator's own cluster. Namespace is the namespace of the machines. NodeSelector selects
	// the nodes that machines may use, by their labels.
	Kubeconfig   []byte
	Namespace    string
	NodeSelector map[string]string
	// Hosts of a cluster whose hosts are connected one by one (libvirt).
	Hosts []Host
	// SSHPrivateKey authenticates the operator at hosts that are connected over SSH, in PEM.
	SSHPrivateKey []byte
	// DomainType of machines on the hosts (libvirt): kvm or qemu. Empty means the best type that a
	// host is capable of.
	DomainType string
	// Address is the address of a provider that is a program of its own, as HOST:PORT or unix:///PATH.
	// Settings are its own settings.
	Address  string
	Settings map[string]string
}

// Default ports of a libvirt host's URI.
const (
	PortLibvirtTLS = "16514"
	PortSSH        = "22"
)

// Host is one host of a cluster whose hosts are connected one by one.
type Host struct {
	// Name is the node's name.
	Name string
	// URI of the host's API.
	URI string
	// SSHHostKey is the SHA-256 fingerprint of the SSH key that the host must present.
	SSHHostKey string
	// StoragePool is the pool of the machines' disks and cloud-init ISOs.
	StoragePool string
	// Network is the host's virtual network, and Bridge the host's bridge that machines are attached
	// to. At most one of them is set. If neither is, machines have a network of their own, from which
	// they reach the network of the host, but nothing reaches them.
	Network, Bridge string
	// MaxCPU and MaxMemory (in bytes) limit the sums of the running machines' virtual CPUs and memory.
	// 0 means no limit for CPUs, and all of the host's memory.
	MaxCPU    int
	MaxMemory int64
	// MaxStoragePercent is the usage of the pool, in percent, from which no machine is placed on the
	// host.
	MaxStoragePercent int
	// Devices are the addresses of the PCI devices that machines can get, by the name of the device.
	Devices map[string][]string
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
	// WrapCall runs each call of a provider whose hypervisor has no HTTP API, for metrics and traces,
	// and to refuse writes. It calls do at most once, and may run on after ctx has ended. It may be nil.
	WrapCall func(ctx context.Context, call Call, do func() error) error
	// ListClaimed returns the machines that claims already hold, so that after a restart the provider
	// neither reserves their ids again, nor gives away what those that do not run yet will use of their
	// nodes on the cluster. The provider calls it before it reserves the first id, until one call
	// succeeds. It may be nil.
	ListClaimed func(ctx context.Context, cluster string) ([]ClaimedMachine, error)
	// SnippetsPath is the directory at which the snippets storage of cloud-init source
	// builtin is mounted. If it is empty, templates cannot use that source.
	SnippetsPath string
	// Clock is the source of time. Default: the real clock.
	Clock clock.WithTicker
}

// ClaimedMachine is a machine that a claim holds.
type ClaimedMachine struct {
	ID int
	// Node is the node of a machine that is placed on the cluster, and that no process is known to have started. The
	// machine may not exist yet, so the hypervisor may not show what it will use: CPU, Memory and Devices as in its
	// Shape. OwnerUID is the UID of its claim. For other machines, these fields are not set.
	Node, OwnerUID string
	CPU            int
	Memory         int64
	Devices        []Device
}

// Call describes one call to a hypervisor without an HTTP API.
type Call struct {
	// Operation is the name of the call, one of a fixed set.
	Operation string
	// Write is true if the call changes something.
	Write bool
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

// TemplateRef refers to a template of the hypervisor by id, by name or by tags.
type TemplateRef struct {
	ID   int
	Name string
	// Tags that a template of Proxmox VE must have, separated by commas. If Name is empty, the templates
	// with the tags must have the same name, or Newest selects the name that was created last.
	Tags   string
	Newest bool
	// Kind and Namespace are set only for hypervisors whose templates are objects of several
	// kinds. Kind is one of the constants below.
	Kind, Namespace string
	// PullSecret is the name of the image pull Secret, if the image needs one.
	PullSecret string
}

// Kinds of templates on Kubernetes and libvirt.
const (
	// TemplateImage is a disk in a container image. TemplateRef.Name is the image.
	TemplateImage = "ContainerDisk"
	// TemplateDataSource is a DataSource of the Containerized Data Importer.
	TemplateDataSource = "DataSource"
	// TemplateVolume is a PersistentVolumeClaim that the provider clones.
	TemplateVolume = "PersistentVolumeClaim"
	// TemplateStorageVolume is a volume of the host's storage pool.
	TemplateStorageVolume = "StorageVolume"
	// TemplateDomain is a defined libvirt domain that does not run. Its disk is cloned.
	TemplateDomain = "Domain"
	// TemplateTaggedDomain is the only such domain that has all tags in TemplateRef.Name, which
	// commas separate.
	TemplateTaggedDomain = "TaggedDomain"
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
	// OS is the operating system that the hypervisor records: OSLinux, OSWindows, or "" if it records none.
	OS string
}

// Operating systems of templates.
const (
	OSLinux   = "linux"
	OSWindows = "windows"
)

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
	// Nested gives the machine the CPU of its node with its virtualization. If Nested is false, the provider
	// does not change the CPU that the template has.
	Nested bool
	// Devices of the node that the machine gets for itself while it runs. Resolve rejects a device of which no node
	// has so many. Reserve, and Start of a prepared machine, return NoCapacity while too few are free, and the error
	// names the device.
	Devices []Device
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

// Device is a kind of device of which a machine gets Count.
type Device struct {
	// Name is the hypervisor's name for the devices, of which all are alike.
	Name  string
	Count int
	// GPU is true if the devices are graphics processors.
	GPU bool
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
	// Exists is true if the owner already has a machine. ID and Node are those of this machine, and
	// Addresses are the static addresses with which it was created. They are empty if it has none, or
	// if they cannot be read.
	Exists    bool
	Addresses []string
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
	// AddressNetwork is the network on which no other machine may have the addresses. It is empty if
	// they are from no address pool. MayBeSameNetwork compares two of them.
	AddressNetwork string
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
