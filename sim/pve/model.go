// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"sigs.k8s.io/yaml"
)

// Model describes a cluster before the first call. The zero value is not useful. Start from
// [DefaultModel] or [LoadModel].
type Model struct {
	// Cluster is the cluster's name.
	Cluster string `json:"cluster"`
	// Version is the version of Proxmox VE that the cluster reports, such as "9.0.3". Major version
	// 8 has the privilege VM.Monitor, and 9 has VM.GuestAgent.Audit.
	Version string `json:"version"`
	// Seed is the seed of all random values (fault probabilities, MAC addresses).
	Seed int64 `json:"seed"`
	// Nodes are the members of the cluster. The first node handles the calls that name no node.
	Nodes []Node `json:"nodes"`
	// Storages are the storages of the cluster, each defined once, as in storage.cfg.
	Storages []Storage `json:"storages"`
	// Bridges exist on every node.
	Bridges []string `json:"bridges"`
	// Templates are the templates. Each is created on all of its nodes.
	Templates []Template `json:"templates"`
	// VMs exist from the start and belong to other users of the cluster.
	VMs []VM `json:"vms"`
	// Users, Roles, Tokens and ACL define the permissions.
	Users  []User  `json:"users"`
	Roles  []Role  `json:"roles"`
	Tokens []Token `json:"tokens"`
	ACL    []ACL   `json:"acl"`
	// PCIMappings are the resource mappings of PCI devices.
	PCIMappings []PCIMapping `json:"pciMappings"`
	// Pools are resource pools.
	Pools []string `json:"pools"`
	// Delays defines how long operations take.
	Delays Delays `json:"delays"`
	// Outage defines how long the faults of nodes take to show.
	Outage Outage `json:"outage"`
	// Limits defines how many operations can run at the same time.
	Limits Limits `json:"limits"`
	// StatusLag is the age of status, name and load in the cluster listing. A real cluster
	// broadcasts these values every ten seconds.
	StatusLag time.Duration `json:"statusLag"`
	// Guest defines what a booted VM does.
	Guest Guest `json:"guest"`
	// Faults apply from the start.
	Faults []Fault `json:"faults"`
	// UserTagAccess is the datacenter option user-tag-access: "free" (the default), or "none". With
	// "none", a user without Sys.Modify can set only the tags of RegisteredTags.
	UserTagAccess string `json:"userTagAccess"`
	// RegisteredTags can be set only with Sys.Modify on /.
	RegisteredTags []string `json:"registeredTags"`
	// Missing lists what the nodes lack, as a damaged installation or one in a container does.
	Missing []Missing `json:"missing"`
	// NextID limits the VMIDs that /cluster/nextid suggests. A zero value means 100..1000000.
	NextID Range `json:"nextID"`
}

// Missing is something that every installation of Proxmox VE has, and whose absence shows in errors of the API.
type Missing string

// What nodes can lack.
const (
	// MissingOVMF is the package pve-edk2-firmware. VMs can't have an EFI.
	MissingOVMF Missing = "ovmf"
	// MissingQEMUTables are the lists of machine types and of CPU flags of the package pve-qemu-kvm.
	MissingQEMUTables Missing = "qemu-tables"
	// MissingQEMUPatches are the changes that Proxmox VE makes to QEMU. Snapshots of running VMs fail and leave a lock, and
	// the images of running VMs cannot be read.
	MissingQEMUPatches Missing = "qemu-patches"
	// MissingTUN is the device /dev/net/tun. A running VM can't get a network card.
	MissingTUN Missing = "tun"
	// MissingTimedate is timedatectl of systemd.
	MissingTimedate Missing = "timedatectl"
	// MissingSSH is the connection by SSH between the nodes.
	MissingSSH Missing = "ssh"
	// MissingPorts is the file in which consoles reserve their ports.
	MissingPorts Missing = "reserved-ports"
)

func (m Model) isMissing(what Missing) bool { return slices.Contains(m.Missing, what) }

// Range is an inclusive range of VMIDs.
type Range struct {
	Lower int `json:"lower"`
	Upper int `json:"upper"`
}

// Node is one member of the cluster.
type Node struct {
	Name string `json:"name"`
	// CPUs is the number of logical processors.
	CPUs int `json:"cpus"`
	// Memory is the physical memory in bytes.
	Memory int64 `json:"memory"`
	// PCI lists the PCI devices that VMs can get.
	PCI []PCIDevice `json:"pci"`
}

// Storage is one entry of the cluster's storage configuration.
type Storage struct {
	Name string `json:"name"`
	// Type is the plug-in: dir, lvmthin, rbd, nfs or zfspool.
	Type string `json:"type"`
	// Path is the directory of a file-based storage. Empty means /var/lib/vz for local, and /var/lib/NAME.
	Path string `json:"path"`
	// Content lists the content types that the storage can hold: images, rootdir, iso, vztmpl,
	// snippets, import.
	Content []string `json:"content"`
	// Shared is true if all nodes share the storage's content.
	Shared bool `json:"shared"`
	// Nodes are the nodes that have the storage. Empty means every node.
	Nodes []string `json:"nodes"`
	// Size is the capacity in bytes. Each node has this capacity unless the storage is shared.
	Size int64 `json:"size"`
	// Snippets are files of the snippets directory by name. The API of a real cluster cannot upload
	// snippets either.
	Snippets map[string]string `json:"snippets"`
	// Disabled storages refuse all operations.
	Disabled bool `json:"disabled"`
}

// Template is a VM that is a template.
type Template struct {
	// Name is the template's name, which is the same on every node.
	Name string `json:"name"`
	// VMID is the id of the template on its first node. The next node has the next id.
	VMID int `json:"vmid"`
	// Nodes are the nodes that have the template. Empty means every node.
	Nodes []string `json:"nodes"`
	// Storage is the storage of the template's disk, and DiskSize is the disk's size in GiB.
	Storage  string `json:"storage"`
	DiskSize int    `json:"diskSize"`
	// NoCloudInit omits the cloud-init drive, and NoAgent omits the guest agent.
	NoCloudInit bool `json:"noCloudInit"`
	NoAgent     bool `json:"noAgent"`
	// TPM adds a TPM that has been started once and so has its seeds.
	TPM bool `json:"tpm"`
	// Config adds options, replaces them, or, with an empty value, deletes them.
	Config map[string]string `json:"config"`
	// ImageDir is a directory with the files of the template's disk image, for GuestExec.
	ImageDir string `json:"imageDir"`
	// Image is the template's disk for GuestQEMU, a qcow2 or raw file. The file determines the
	// disk's size and is only read. Empty means the image of [QEMU].
	Image string `json:"image"`
	// DiskSlot and CloudInitSlot are the slots of the disk and of the cloud-init drive. Empty means
	// scsi0 and ide2.
	DiskSlot      string `json:"diskSlot"`
	CloudInitSlot string `json:"cloudInitSlot"`
}

// VM is a VM that exists from the start.
type VM struct {
	VMID    int               `json:"vmid"`
	Name    string            `json:"name"`
	Node    string            `json:"node"`
	Pool    string            `json:"pool"`
	Running bool              `json:"running"`
	Storage string            `json:"storage"`
	Config  map[string]string `json:"config"`
}

// User is a user of the cluster.
type User struct {
	// ID is name@realm.
	ID       string `json:"id"`
	Password string `json:"password"`
	// Groups are the groups of the user, for ACL entries of groups.
	Groups  []string `json:"groups"`
	Comment string   `json:"comment"`
	Email   string   `json:"email"`
	// FirstName and LastName are what the user is called.
	FirstName string `json:"firstName"`
	LastName  string `json:"lastName"`
	// Expire is the Unix time from which the user cannot log in. 0 means never.
	Expire int64 `json:"expire"`
	// Disabled users cannot log in. Their tokens are refused too.
	Disabled bool `json:"disabled"`
}

// Role is a named set of privileges, in addition to the built-in roles.
type Role struct {
	Name       string   `json:"name"`
	Privileges []string `json:"privileges"`
}

// Token is an API token.
type Token struct {
	// ID is user@realm!name.
	ID     string `json:"id"`
	Secret string `json:"secret"`
	// NoPrivSep gives the token all privileges of its user. By default a token has only the
	// privileges that both the user and the token's own ACL entries grant.
	NoPrivSep bool `json:"noPrivSep"`
	// Expire is the Unix time from which the token is refused. 0 means never.
	Expire  int64  `json:"expire"`
	Comment string `json:"comment"`
}

// ACL grants a role on a path.
type ACL struct {
	Path string `json:"path"`
	// Principal is user@realm, user@realm!token or @group.
	Principal string `json:"principal"`
	Role      string `json:"role"`
	// NoPropagate limits the grant to the path itself, without the paths below.
	NoPropagate bool `json:"noPropagate"`
}

// Delays defines how long the work of a task takes. Zero means no delay.
type Delays struct {
	// Clone is the time of a linked clone. FullClone is the time of a full clone and defaults to
	// Clone.
	Clone     time.Duration `json:"clone"`
	FullClone time.Duration `json:"fullClone"`
	// Start is the time of the qmstart task.
	Start time.Duration `json:"start"`
	// Boot is the time from a VM's start until its guest begins to work.
	Boot time.Duration `json:"boot"`
	// Agent is the time from the end of booting until the guest agent responds.
	Agent time.Duration `json:"agent"`
	// Shutdown is the time that a guest needs to power off after a request.
	Shutdown time.Duration `json:"shutdown"`
	// Destroy, Upload and Config are the times of these tasks.
	Destroy time.Duration `json:"destroy"`
	Upload  time.Duration `json:"upload"`
	Config  time.Duration `json:"config"`
	// SSH is the time that the entry node needs to reach another node to which it forwards an
	// uploaded file. The connection of an upload is closed after five seconds.
	SSH time.Duration `json:"ssh"`
	// Call is added to every call.
	Call time.Duration `json:"call"`
	// LoginFailure is the delay of 401 responses. Real clusters use 3 s.
	LoginFailure time.Duration `json:"loginFailure"`
}

// Limits defines how many operations can run at the same time. 0 means no limit.
type Limits struct {
	// ClonesPerStorage is the number of clones that one storage creates at a time. Further clones
	// wait for the storage's lock and fail after ten seconds.
	ClonesPerStorage int `json:"clonesPerStorage"`
	// WorkersPerNode is the number of calls that one node handles at a time.
	WorkersPerNode int `json:"workersPerNode"`
}

// GuestKind is what a booted VM does.
type GuestKind string

// The kinds of guests.
const (
	// GuestNothing runs until the VM is stopped.
	GuestNothing GuestKind = "nothing"
	// GuestScript runs for the time StayUp and then powers off.
	GuestScript GuestKind = "script"
	// GuestExec runs a program with the data of the cloud-init drive.
	GuestExec GuestKind = "exec"
	// GuestQEMU runs a QEMU process with the VM's disks, media, network cards, processors and
	// memory.
	GuestQEMU GuestKind = "qemu"
)

// Guest configures the guests of all VMs.
type Guest struct {
	Kind GuestKind `json:"kind"`
	// StayUp is how long a GuestScript runs after booting.
	StayUp time.Duration `json:"stayUp"`
	// IgnoreShutdown makes guests ignore the power button.
	IgnoreShutdown bool `json:"ignoreShutdown"`
	// IPv6Only makes guests report only an IPv6 address.
	IPv6Only bool `json:"ipv6Only"`
	// Program is the program of a GuestExec. The simulator runs it as `PROGRAM --config
	// ROOT/etc/hyperfleet/runner-config.json --root ROOT` with an empty environment.
	Program string `json:"program"`
	// Wine is the path of Wine. It runs a GuestExec whose VM has an ostype of Windows: the image is a
	// Wine prefix with the program [execguest.WindowsProgram], which the simulator runs as `PROGRAM
	// --root C:\`. The files of the cloud-init drive are on drive E, because Windows has no cloud-init.
	Wine string `json:"wine"`
	// ImageDir is a directory with the files of every VM's disk. The ImageDir of a template has
	// precedence.
	ImageDir string `json:"imageDir"`
	// WorkDir is the directory in which the simulator creates a directory for the VMs' root
	// directories or disks. Close deletes the created directory. Empty means the system's directory
	// for temporary files. The consoles of a GuestQEMU stay in WorkDir/serial as vm-ID.log.
	WorkDir string `json:"workDir"`
	// QEMU configures how a GuestQEMU boots.
	QEMU QEMU `json:"qemu"`
	// Script, if set, is called in a goroutine of its own for each booted VM and replaces Kind. The
	// VM powers off when Script returns. Script is for tests.
	Script func(GuestVM) `json:"-"`
}

// QEMU configures the machines of a GuestQEMU.
type QEMU struct {
	// Image is the disk of templates that have no image of their own; see [Template.Image].
	Image string `json:"image"`
	// Kernel, Initrd and Append, if set, replace the disk's boot loader.
	Kernel string `json:"kernel"`
	Initrd string `json:"initrd"`
	Append string `json:"append"`
	// Accel is tcg (software emulation, the default) or kvm.
	Accel string `json:"accel"`
}

// The names and ids of the default model.
const (
	DefaultTemplate  = "hyperfleet-runner"
	DefaultTokenID   = "hyperfleet@pve!operator"
	DefaultSecret    = "00000000-0000-4000-8000-000000000001" // #nosec G101 -- only the simulator knows it
	DefaultUser      = "hyperfleet@pve"
	DefaultPassword  = "hyperfleet-sim" // #nosec G101 -- only the simulator knows it
	RootUser         = "root@pam"
	DefaultPool      = "ci"
	DefaultSharedID  = "ceph"
	gib              = int64(1) << 30
	defaultFirstVMID = 9001
)

// DefaultModel returns a cluster of three nodes, pve1 to pve3. Each node has the storages local
// (ISOs, snippets) and local-lvm (disks) and the template hyperfleet-runner (9001, 9002, 9003). The
// token [DefaultTokenID] has the least privileges that the operator needs. Two VMs (100 and 101)
// belong to other users.
func DefaultModel() Model {
	return Model{
		Cluster: "sim", Version: "9.0.3", Seed: 1,
		Nodes: []Node{
			{Name: "pve1", CPUs: 32, Memory: 128 * gib},
			{Name: "pve2", CPUs: 32, Memory: 128 * gib},
			{Name: "pve3", CPUs: 32, Memory: 128 * gib},
		},
		Storages: []Storage{
			{Name: "local", Type: "dir", Content: []string{"iso", "snippets", "vztmpl"}, Size: 100 * gib},
			{Name: "local-lvm", Type: "lvmthin", Content: []string{"images", "rootdir"}, Size: 1024 * gib},
		},
		Bridges: []string{"vmbr0"},
		Templates: []Template{{
			Name: DefaultTemplate, VMID: defaultFirstVMID, Storage: "local-lvm", DiskSize: 20,
		}},
		VMs: []VM{
			{VMID: 100, Name: "accounting", Node: "pve1", Running: true, Storage: "local-lvm"},
			{VMID: 101, Name: "hyperfleet-lookalike", Node: "pve2", Storage: "local-lvm",
				Config: map[string]string{"tags": "hyperfleet"}},
		},
		Users:     []User{{ID: RootUser, Password: DefaultPassword}, {ID: DefaultUser, Password: DefaultPassword}},
		Roles:     defaultRoles(),
		Tokens:    []Token{{ID: DefaultTokenID, Secret: DefaultSecret}},
		ACL:       defaultACL(3),
		Pools:     []string{DefaultPool},
		Limits:    Limits{ClonesPerStorage: 2, WorkersPerNode: 3},
		StatusLag: 10 * time.Second, Outage: defaultOutage(),
		Guest: Guest{Kind: GuestNothing},
	}
}

func defaultRoles() []Role {
	return []Role{
		{Name: "HyperFleetTemplate", Privileges: []string{"VM.Clone", "VM.Audit"}},
		{Name: "HyperFleetVM", Privileges: []string{
			"VM.Allocate", "VM.Audit", "VM.PowerMgmt", "VM.Config.CPU", "VM.Config.Memory",
			"VM.Config.Disk", "VM.Config.Network", "VM.Config.HWType", "VM.Config.Options",
			"VM.Config.Cloudinit", "VM.Config.CDROM", "VM.GuestAgent.Audit", "VM.Monitor",
		}},
		{Name: "HyperFleetDisk", Privileges: []string{"Datastore.AllocateSpace", "Datastore.Audit"}},
		{Name: "HyperFleetISO", Privileges: []string{
			// Deleting an ISO requires Datastore.Allocate. Uploading an ISO does not.
			"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit",
		}},
		{Name: "HyperFleetSys", Privileges: []string{"Sys.Audit"}},
		{Name: "HyperFleetNet", Privileges: []string{"SDN.Use"}},
		{Name: "HyperFleetPool", Privileges: []string{"Pool.Audit", "VM.Allocate", "VM.Audit"}},
	}
}

// defaultACL grants the operator's user and its token the least privileges on VMs, templates (which
// the operator can only clone), storages, the bridge, the pool and the nodes.
func defaultACL(templates int) []ACL {
	var out []ACL
	for _, principal := range []string{DefaultUser, DefaultTokenID} {
		out = append(out,
			ACL{Path: "/vms", Principal: principal, Role: "HyperFleetVM"},
			ACL{Path: "/storage/local-lvm", Principal: principal, Role: "HyperFleetDisk"},
			ACL{Path: "/storage/" + DefaultSharedID, Principal: principal, Role: "HyperFleetDisk"},
			ACL{Path: "/storage/local", Principal: principal, Role: "HyperFleetISO"},
			ACL{Path: "/sdn/zones/localnetwork", Principal: principal, Role: "HyperFleetNet"},
			ACL{Path: "/pool/" + DefaultPool, Principal: principal, Role: "HyperFleetPool"},
			ACL{Path: "/nodes", Principal: principal, Role: "HyperFleetSys"},
		)
		for i := range templates {
			out = append(out, ACL{
				Path: fmt.Sprintf("/vms/%d", defaultFirstVMID+i), Principal: principal, Role: "HyperFleetTemplate",
			})
		}
	}
	return out
}

// WithNodes returns the model with n nodes, pve1 to pveN, which are copies of its first node. VMs of
// removed nodes move to the first node. WithNodes also adds the default grants for n templates.
func (m Model) WithNodes(n int) Model {
	if n <= 0 || len(m.Nodes) == 0 {
		return m
	}
	known := map[string]bool{}
	nodes := make([]Node, 0, n)
	for i := range n {
		node := m.Nodes[0]
		node.Name = fmt.Sprintf("pve%d", i+1)
		known[node.Name] = true
		nodes = append(nodes, node)
	}
	m.Nodes = nodes
	m.VMs = append([]VM(nil), m.VMs...)
	for i := range m.VMs {
		if !known[m.VMs[i].Node] {
			m.VMs[i].Node = nodes[0].Name
		}
	}
	m.ACL = append(defaultACL(n), m.ACL...)
	return m
}

// WithSharedStorage returns the model with the shared storage [DefaultSharedID], to which the
// templates' disks are moved.
func (m Model) WithSharedStorage() Model {
	m.Storages = append(append([]Storage(nil), m.Storages...), Storage{
		Name: DefaultSharedID, Type: "rbd", Content: []string{"images", "rootdir"}, Shared: true, Size: 4096 * gib,
	})
	m.Templates = append([]Template(nil), m.Templates...)
	for i := range m.Templates {
		m.Templates[i].Storage = DefaultSharedID
	}
	return m
}

// LoadModel reads a YAML file. Fields that the file does not set keep the values of the default
// model. An unknown field is an error.
func LoadModel(path string) (Model, error) {
	data, err := os.ReadFile(path) // #nosec G304 -- the caller's own file
	if err != nil {
		return Model{}, fmt.Errorf("read model: %w", err)
	}
	m, err := ParseModel(data)
	if err != nil {
		return Model{}, fmt.Errorf("read model %s: %w", path, err)
	}
	return m, nil
}

// ParseModel parses a model in YAML; see [LoadModel]. Durations have Go's format ("1m30s").
func ParseModel(data []byte) (Model, error) {
	var raw map[string]any
	if err := yaml.UnmarshalStrict(data, &raw); err != nil {
		return Model{}, fmt.Errorf("parse yaml: %w", err)
	}
	m := DefaultModel()
	dec, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result: &m, TagName: "json", ErrorUnused: true, ZeroFields: true,
		DecodeHook: mapstructure.StringToTimeDurationHookFunc(),
	})
	if err != nil {
		return Model{}, fmt.Errorf("create decoder: %w", err)
	}
	if err := dec.Decode(raw); err != nil {
		return Model{}, fmt.Errorf("decode model: %w", err)
	}
	return m, m.Validate()
}

// Validate returns an error that lists all problems of the model.
func (m Model) Validate() error {
	var errs []error
	if len(m.Nodes) == 0 {
		errs = append(errs, errors.New("nodes: at least one node is required"))
	}
	nodes := map[string]bool{}
	for _, n := range m.Nodes {
		if n.Name == "" || nodes[n.Name] {
			errs = append(errs, fmt.Errorf("nodes: name %q is empty or used twice", n.Name))
		}
		nodes[n.Name] = true
	}
	stores := map[string]bool{}
	for _, s := range m.Storages {
		stores[s.Name] = true
		errs = append(errs, checkNodeNames("storage "+s.Name, s.Nodes, nodes)...)
	}
	for _, t := range m.Templates {
		if !stores[t.Storage] {
			errs = append(errs, fmt.Errorf("template %s: unknown storage %q", t.Name, t.Storage))
		}
		errs = append(errs, checkNodeNames("template "+t.Name, t.Nodes, nodes)...)
	}
	for _, v := range m.VMs {
		errs = append(errs, checkNodeNames("vm "+v.Name, []string{v.Node}, nodes)...)
	}
	for _, mapping := range m.PCIMappings {
		for _, text := range mapping.Map {
			if _, err := pciMapFormat().parse(text); err != nil {
				errs = append(errs, fmt.Errorf("pci mapping %s: entry %q: %w", mapping.ID, text, err))
			}
		}
	}
	switch m.Guest.Kind {
	case GuestNothing, GuestScript, GuestExec, GuestQEMU, "":
	default:
		errs = append(errs, fmt.Errorf("guest: unknown kind %q (use nothing, script, exec or qemu)", m.Guest.Kind))
	}
	if m.Guest.Kind == GuestQEMU {
		errs = append(errs, m.Guest.QEMU.validate())
	}
	if m.Guest.Kind == GuestExec && m.Guest.Program == "" && m.Guest.Wine == "" {
		errs = append(errs, errors.New("guest: kind exec requires a program, or Wine for VMs with Windows"))
	}
	for _, f := range m.Faults {
		errs = append(errs, f.Validate())
	}
	return errors.Join(errs...)
}

func checkNodeNames(owner string, names []string, known map[string]bool) []error {
	var errs []error
	for _, n := range names {
		if !known[n] {
			errs = append(errs, fmt.Errorf("%s: unknown node %q", owner, n))
		}
	}
	return errs
}
