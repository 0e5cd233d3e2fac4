// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"sigs.k8s.io/yaml"
)

// Model describes a cluster before the first call. The zero value is not
// useful; start from [DefaultModel] or [LoadModel].
type Model struct {
	// Cluster is the cluster's name.
	Cluster string `json:"cluster"`
	// Version is the Proxmox VE version reported, such as "9.0.3". Major
	// version 8 knows the privilege VM.Monitor, 9 VM.GuestAgent.Audit.
	Version string `json:"version"`
	// Seed feeds everything random (fault probabilities, MAC addresses).
	Seed int64 `json:"seed"`
	// Nodes are the cluster's members; the first one answers the calls that
	// name no node.
	Nodes []Node `json:"nodes"`
	// Storages are defined once per cluster, as in storage.cfg.
	Storages []Storage `json:"storages"`
	// Bridges exist on every node.
	Bridges []string `json:"bridges"`
	// Templates are created on every node they name.
	Templates []Template `json:"templates"`
	// VMs exist from the start and belong to somebody else.
	VMs []VM `json:"vms"`
	// Users, Roles, Tokens and ACL decide who may do what.
	Users  []User  `json:"users"`
	Roles  []Role  `json:"roles"`
	Tokens []Token `json:"tokens"`
	ACL    []ACL   `json:"acl"`
	// Pools are resource pools.
	Pools []string `json:"pools"`
	// Delays say how long things take.
	Delays Delays `json:"delays"`
	// Outage says how long trouble with nodes takes to show.
	Outage Outage `json:"outage"`
	// Limits bound what runs at the same time.
	Limits Limits `json:"limits"`
	// StatusLag is how old status, name and load in the cluster listing are;
	// a real cluster broadcasts them every ten seconds.
	StatusLag time.Duration `json:"statusLag"`
	// Guest says what a booted VM does.
	Guest Guest `json:"guest"`
	// Faults are in force from the start.
	Faults []Fault `json:"faults"`
	// UserTagAccess is the datacenter option user-tag-access: "free" (the
	// default) or "none" (only tags of RegisteredTags without Sys.Modify).
	UserTagAccess string `json:"userTagAccess"`
	// RegisteredTags may be set only with Sys.Modify on /.
	RegisteredTags []string `json:"registeredTags"`
	// NoOVMF nodes lack the package pve-edk2-firmware: VMs can't have an EFI.
	NoOVMF bool `json:"noOVMF"`
	// NextID bounds what /cluster/nextid suggests; zero means 100..999999999.
	NextID Range `json:"nextID"`
}

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
}

// Storage is one entry of the cluster's storage configuration.
type Storage struct {
	Name string `json:"name"`
	// Type is the plug-in: dir, lvmthin, rbd, nfs or zfspool.
	Type string `json:"type"`
	// Content lists what it may hold: images, rootdir, iso, vztmpl, snippets,
	// import.
	Content []string `json:"content"`
	// Shared storages are one and the same on all their nodes.
	Shared bool `json:"shared"`
	// Nodes restricts the storage; empty means every node.
	Nodes []string `json:"nodes"`
	// Size is the capacity in bytes, per node unless shared.
	Size int64 `json:"size"`
	// Snippets are files of the snippets directory by name. The API of a real
	// cluster cannot upload them either.
	Snippets map[string]string `json:"snippets"`
	// Disabled storages refuse everything.
	Disabled bool `json:"disabled"`
}

// Template is a VM converted to a template.
type Template struct {
	// Name is the template's name, the same on every node.
	Name string `json:"name"`
	// VMID is the id on the first node; the next node gets the next id.
	VMID int `json:"vmid"`
	// Nodes that carry the template; empty means every node.
	Nodes []string `json:"nodes"`
	// Storage holds its disk; DiskSize is the size in GiB.
	Storage  string `json:"storage"`
	DiskSize int    `json:"diskSize"`
	// NoCloudInit leaves out the cloud-init drive, NoAgent the guest agent.
	NoCloudInit bool `json:"noCloudInit"`
	NoAgent     bool `json:"noAgent"`
	// TPM gives it a TPM that has been started once, so that it has seeds.
	TPM bool `json:"tpm"`
	// Config overrides or adds options.
	Config map[string]string `json:"config"`
	// ImageDir holds the files of the template's disk image, for GuestExec.
	ImageDir string `json:"imageDir"`
	// Image is the template's disk, for GuestQEMU: a qcow2 or raw file, which
	// gives the disk's size. It is read only. Empty means that of the guests.
	Image string `json:"image"`
	// DiskSlot and CloudInitSlot are where disk and cloud-init drive are
	// attached; empty means scsi0 and ide2.
	DiskSlot      string `json:"diskSlot"`
	CloudInitSlot string `json:"cloudInitSlot"`
}

// VM is a machine that exists from the start.
type VM struct {
	VMID    int               `json:"vmid"`
	Name    string            `json:"name"`
	Node    string            `json:"node"`
	Pool    string            `json:"pool"`
	Running bool              `json:"running"`
	Storage string            `json:"storage"`
	Config  map[string]string `json:"config"`
}

// User is a login.
type User struct {
	// ID is name@realm.
	ID       string `json:"id"`
	Password string `json:"password"`
	// Groups the user belongs to, for ACL entries on groups.
	Groups  []string `json:"groups"`
	Comment string   `json:"comment"`
	Email   string   `json:"email"`
	// Disabled users cannot log in, nor can their tokens.
	Disabled bool `json:"disabled"`
}

// Role is a named set of privileges, beside the built-in ones.
type Role struct {
	Name       string   `json:"name"`
	Privileges []string `json:"privileges"`
}

// Token is an API token.
type Token struct {
	// ID is user@realm!name.
	ID     string `json:"id"`
	Secret string `json:"secret"`
	// NoPrivSep gives the token everything its user may do. By default a token
	// has only what both the user and the token's own ACL entries allow.
	NoPrivSep bool `json:"noPrivSep"`
	// Expire is the Unix time after which it is refused; 0 means never.
	Expire int64 `json:"expire"`
}

// ACL grants a role on a path.
type ACL struct {
	Path string `json:"path"`
	// Principal is user@realm, user@realm!token or @group.
	Principal string `json:"principal"`
	Role      string `json:"role"`
	// NoPropagate keeps the grant from the paths below.
	NoPropagate bool `json:"noPropagate"`
}

// Delays say how long the work behind a task takes. Zero means at once.
type Delays struct {
	// Clone is the time of a linked clone; FullClone that of a full one
	// (Clone when zero).
	Clone     time.Duration `json:"clone"`
	FullClone time.Duration `json:"fullClone"`
	// Start is the time of the qmstart task.
	Start time.Duration `json:"start"`
	// Boot is the time from the start of a VM until its guest does something.
	Boot time.Duration `json:"boot"`
	// Agent is the time from the end of booting until the guest agent answers.
	Agent time.Duration `json:"agent"`
	// Shutdown is the time a guest takes to power off when asked.
	Shutdown time.Duration `json:"shutdown"`
	// Destroy, Upload and Config are the times of those tasks.
	Destroy time.Duration `json:"destroy"`
	Upload  time.Duration `json:"upload"`
	Config  time.Duration `json:"config"`
	// SSH is the time that the node which is asked takes to reach another one that a file
	// is uploaded for; after five seconds an upload's connection is closed.
	SSH time.Duration `json:"ssh"`
	// Call is added to every call.
	Call time.Duration `json:"call"`
	// LoginFailure delays 401 answers; real clusters use 3 s.
	LoginFailure time.Duration `json:"loginFailure"`
}

// Limits bound parallel work.
type Limits struct {
	// ClonesPerStorage is how many clones one storage makes at a time; further
	// ones wait for the storage lock and give up after ten seconds.
	ClonesPerStorage int `json:"clonesPerStorage"`
	// WorkersPerNode is how many calls one node handles at a time.
	WorkersPerNode int `json:"workersPerNode"`
}

// GuestKind says what a booted VM does.
type GuestKind string

// What a booted VM can do.
const (
	// GuestNothing stays up until it is stopped.
	GuestNothing GuestKind = "nothing"
	// GuestScript stays up for a while and then powers off.
	GuestScript GuestKind = "script"
	// GuestExec runs a program with the data of the cloud-init drive.
	GuestExec GuestKind = "exec"
	// GuestQEMU is a machine of QEMU's, with the VM's disks, media, network
	// cards, processors and memory.
	GuestQEMU GuestKind = "qemu"
)

// Guest describes the inside of every VM.
type Guest struct {
	Kind GuestKind `json:"kind"`
	// StayUp is how long a GuestScript stays up after booting.
	StayUp time.Duration `json:"stayUp"`
	// IgnoreShutdown makes guests deaf to the power button.
	IgnoreShutdown bool `json:"ignoreShutdown"`
	// Program is what a GuestExec runs, as
	// `PROGRAM --config ROOT/etc/hyperfleet/runner-config.json --root ROOT`
	// with an empty environment.
	Program string `json:"program"`
	// ImageDir holds files every VM's disk has; a template's own is preferred.
	ImageDir string `json:"imageDir"`
	// WorkDir is where a directory for the VMs' root directories or disks is
	// made, which is removed on close; empty means among temporary files.
	// Consoles of a GuestQEMU are kept in its folder serial, as vm-ID.log.
	WorkDir string `json:"workDir"`
	// QEMU is how a GuestQEMU boots.
	QEMU QEMU `json:"qemu"`
	// Script, when set, is called in its own goroutine for every VM that has
	// booted, whatever Kind is; the VM powers off when it returns. For tests.
	Script func(GuestVM) `json:"-"`
}

// QEMU is how the machines of a GuestQEMU boot.
type QEMU struct {
	// Image is the disk of templates without one of their own; see
	// [Template.Image].
	Image string `json:"image"`
	// Kernel, Initrd and Append, when set, are booted in place of the disk's
	// boot loader.
	Kernel string `json:"kernel"`
	Initrd string `json:"initrd"`
	Append string `json:"append"`
	// Accel is tcg (software emulation, the default) or kvm.
	Accel string `json:"accel"`
}

// Names and ids of the default model.
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

// DefaultModel is a cluster of three nodes pve1 to pve3 with per-node storages
// local (ISOs, snippets) and local-lvm (disks), the template hyperfleet-runner
// on every node (9001, 9002, 9003), the token [DefaultTokenID] with the least
// privileges the operator needs, and two VMs of somebody else (100 and 101).
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
			// Deleting an ISO needs Datastore.Allocate, uploading one does not.
			"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit",
		}},
		{Name: "HyperFleetSys", Privileges: []string{"Sys.Audit"}},
		{Name: "HyperFleetNet", Privileges: []string{"SDN.Use"}},
		{Name: "HyperFleetPool", Privileges: []string{"Pool.Audit", "VM.Allocate", "VM.Audit"}},
	}
}

// defaultACL grants the operator's user and its token the least privileges:
// VMs, templates (which may only be cloned), storages, bridge, pool and nodes.
func defaultACL(templates int) []ACL {
	var out []ACL
	for _, who := range []string{DefaultUser, DefaultTokenID} {
		out = append(out,
			ACL{Path: "/vms", Principal: who, Role: "HyperFleetVM"},
			ACL{Path: "/storage/local-lvm", Principal: who, Role: "HyperFleetDisk"},
			ACL{Path: "/storage/" + DefaultSharedID, Principal: who, Role: "HyperFleetDisk"},
			ACL{Path: "/storage/local", Principal: who, Role: "HyperFleetISO"},
			ACL{Path: "/sdn/zones/localnetwork", Principal: who, Role: "HyperFleetNet"},
			ACL{Path: "/pool/" + DefaultPool, Principal: who, Role: "HyperFleetPool"},
			ACL{Path: "/nodes", Principal: who, Role: "HyperFleetSys"},
		)
		for i := range templates {
			out = append(out, ACL{
				Path: fmt.Sprintf("/vms/%d", defaultFirstVMID+i), Principal: who, Role: "HyperFleetTemplate",
			})
		}
	}
	return out
}

// WithNodes is the model with n nodes pve1 to pveN like its first one. VMs of
// nodes that are no more move to the first node; the default grants follow the
// templates.
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

// WithSharedStorage adds the shared storage [DefaultSharedID] and moves the
// templates' disks onto it.
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

// LoadModel reads a YAML file over the default model: what the file does not
// name keeps its default, unknown fields are errors.
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

// ParseModel reads a YAML model; see [LoadModel]. Durations are written as Go
// writes them ("1m30s").
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
		return Model{}, fmt.Errorf("make decoder: %w", err)
	}
	if err := dec.Decode(raw); err != nil {
		return Model{}, fmt.Errorf("decode model: %w", err)
	}
	return m, m.Validate()
}

// Validate reports what makes a model impossible.
func (m Model) Validate() error {
	var errs []error
	if len(m.Nodes) == 0 {
		errs = append(errs, errors.New("nodes: at least one is needed"))
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
		errs = append(errs, unknownNames("storage "+s.Name, s.Nodes, nodes)...)
	}
	for _, t := range m.Templates {
		if !stores[t.Storage] {
			errs = append(errs, fmt.Errorf("template %s: no storage %q", t.Name, t.Storage))
		}
		errs = append(errs, unknownNames("template "+t.Name, t.Nodes, nodes)...)
	}
	for _, v := range m.VMs {
		errs = append(errs, unknownNames("vm "+v.Name, []string{v.Node}, nodes)...)
	}
	switch m.Guest.Kind {
	case GuestNothing, GuestScript, GuestExec, GuestQEMU, "":
	default:
		errs = append(errs, fmt.Errorf("guest: unknown kind %q (use nothing, script, exec or qemu)", m.Guest.Kind))
	}
	if m.Guest.Kind == GuestQEMU {
		errs = append(errs, m.Guest.QEMU.validate())
	}
	if m.Guest.Kind == GuestExec && m.Guest.Program == "" {
		errs = append(errs, errors.New("guest: kind exec needs a program"))
	}
	for _, f := range m.Faults {
		errs = append(errs, f.Validate())
	}
	return errors.Join(errs...)
}

func unknownNames(what string, names []string, known map[string]bool) []error {
	var errs []error
	for _, n := range names {
		if !known[n] {
			errs = append(errs, fmt.Errorf("%s: no node %q", what, n))
		}
	}
	return errs
}
