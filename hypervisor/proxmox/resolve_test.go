// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// connectChanged connects to a simulator with a changed model or a changed configuration of the connection.
func connectChanged(t *testing.T, model func(*pve.Model), config func(*hypervisor.Config)) hypervisor.Connection {
	t.Helper()

	m := fastModel()
	if model != nil {
		model(&m)
	}

	return connect(t, pvetest.New(t, m), func(c *hypervisor.Config, _ *hypervisor.Options) {
		if config != nil {
			config(c)
		}
	})
}

func TestResolve(t *testing.T) {
	t.Parallel()

	cases := []struct {
		name   string
		model  func(*pve.Model)
		config func(*hypervisor.Config)
		ref    hypervisor.TemplateRef
		want   int
	}{
		{"by name on every node", nil, nil, hypervisor.TemplateRef{Name: pve.DefaultTemplate}, 3},
		{"by id on its node", nil, nil, hypervisor.TemplateRef{ID: 9002}, 1},
		{"only on usable nodes", nil, func(c *hypervisor.Config) { c.Nodes = []string{"pve2", "pve3"} },
			hypervisor.TemplateRef{Name: pve.DefaultTemplate}, 2},
		{"shared disks serve other nodes", func(m *pve.Model) { *m = m.WithSharedStorage() },
			func(c *hypervisor.Config) { c.Nodes = []string{"pve3"} }, hypervisor.TemplateRef{ID: 9001}, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()

			p := connectChanged(t, c.model, c.config)

			found, err := p.Resolve(t.Context(), c.ref, newSpec(1).Shape)
			if err != nil || len(found) != c.want {
				t.Errorf("found %+v (%v), want %d", found, err, c.want)
			}

			for _, f := range found {
				if f.ID == 0 || f.Node == "" || f.Storage == "" || f.DiskBytes != 20*gib || c.ref.ID != 0 && f.ID != c.ref.ID {
					t.Errorf("found %+v for %+v", f, c.ref)
				}
			}
		})
	}
}

func TestResolveErrors(t *testing.T) {
	t.Parallel()

	template := func(change func(*pve.Template)) func(*pve.Model) {
		return func(m *pve.Model) {
			m.Templates = append([]pve.Template(nil), m.Templates...)
			change(&m.Templates[0])
		}
	}
	byName := hypervisor.TemplateRef{Name: pve.DefaultTemplate}

	cases := []struct {
		name   string
		model  func(*pve.Model)
		config func(*hypervisor.Config)
		ref    hypervisor.TemplateRef
		shape  func(*hypervisor.Shape)
		kind   hypervisor.Kind
		words  []string
	}{
		{"no such name", nil, nil, hypervisor.TemplateRef{Name: "nope"}, nil, hypervisor.NotFound, []string{`template "nope"`}},
		{"no such id", nil, nil, hypervisor.TemplateRef{ID: 4711}, nil, hypervisor.NotFound, []string{"template 4711"}},
		{"not a template", nil, nil, hypervisor.TemplateRef{ID: 101}, nil, hypervisor.Rejected, []string{"101", "qm template 101"}},
		{"no agent", template(func(x *pve.Template) { x.NoAgent = true }), nil, byName, nil, hypervisor.Rejected,
			[]string{"9001", "no guest agent", "qm set 9001 --agent 1"}},
		{"no cloud-init drive for builtin", template(func(x *pve.Template) { x.NoCloudInit = true }), nil, byName,
			func(s *hypervisor.Shape) { s.CloudInitSource = hypervisor.SourceBuiltin },
			hypervisor.Rejected, []string{"9001", "no cloud-init drive", "cloudinit"}},
		{"no free slot for the ISO", template(func(x *pve.Template) {
			x.NoCloudInit = true
			x.Config = map[string]string{
				"ide2": "local:iso/a.iso,media=cdrom", "ide0": "local:iso/a.iso,media=cdrom", "sata5": "local:iso/a.iso,media=cdrom",
			}
		}), nil, byName, nil, hypervisor.Rejected, []string{"9001", "no free CD-ROM slot"}},
		{"disk smaller than the template's", nil, nil, byName, func(s *hypervisor.Shape) { s.Disk = 10 * gib },
			hypervisor.Rejected, []string{"20 GiB", "10 GiB", "only grow"}},
		{"beyond every node", nil, nil, byName, func(s *hypervisor.Shape) { s.Memory = 129 * gib }, hypervisor.Rejected,
			[]string{"129 GiB", "pve", "128 GiB"}},
		{"too many cores", nil, nil, byName, func(s *hypervisor.Shape) { s.CPU = 33 }, hypervisor.Rejected, []string{"33 cores", "32 cores"}},
		{"no such bridge", nil, nil, byName, func(s *hypervisor.Shape) { s.Bridge = "vmbr7" }, hypervisor.Rejected,
			[]string{"no bridge vmbr7", "vmbr0"}},
		{"storage that is not there", nil, nil, byName, func(s *hypervisor.Shape) { s.Linked, s.Storage = false, "nas" },
			hypervisor.Rejected, []string{"nas"}},
		{"template on an unusable node", nil, func(c *hypervisor.Config) { c.Nodes = []string{"pve2"} }, hypervisor.TemplateRef{ID: 9001},
			nil, hypervisor.Rejected, []string{"template 9001", "pve1", "not shared"}},
		{"a linked clone on plain LVM", func(m *pve.Model) {
			m.Storages = slices.Clone(m.Storages)
			for i := range m.Storages {
				if m.Storages[i].Name == "local-lvm" {
					m.Storages[i].Type = "lvm"
				}
			}
		}, nil, byName, func(s *hypervisor.Shape) { s.Linked = true }, hypervisor.Rejected,
			[]string{"local-lvm of type lvm", "does not support linked clones"}},
		{"not allowed to clone", func(m *pve.Model) { revoke(m, "HyperFleetTemplate", "VM.Clone") }, nil, byName, nil,
			hypervisor.Rejected, []string{"VM.Clone", "/vms/9001"}},
		{"not allowed on its storage", func(m *pve.Model) { revoke(m, "HyperFleetDisk", "Datastore.AllocateSpace") }, nil, byName, nil,
			hypervisor.Rejected, []string{"Datastore.AllocateSpace", "/storage/local-lvm"}},
		{"not allowed on the bridge", func(m *pve.Model) { revoke(m, "HyperFleetNet", "SDN.Use") }, nil, byName,
			func(s *hypervisor.Shape) { s.Bridge = "vmbr0" }, hypervisor.Rejected, []string{"SDN.Use", "vmbr0"}},
		{"builtin without its settings", nil, nil, byName,
			func(s *hypervisor.Shape) { s.CloudInitSource = hypervisor.SourceBuiltin },
			hypervisor.Rejected, []string{"snippetsStorage"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()

			p := connectChanged(t, c.model, c.config)

			shape := newSpec(1).Shape
			if c.shape != nil {
				c.shape(&shape)
			}

			_, err := p.Resolve(t.Context(), c.ref, shape)
			requireError(t, err, c.kind, c.words...)
		})
	}
}

// A privilege on a bridge is also checked if the node does not list its bridges.
func TestBridgeWithoutList(t *testing.T) {
	t.Parallel()

	m := fastModel()
	revoke(&m, "HyperFleetNet", "SDN.Use")

	s := pvetest.New(t, m)
	p := connect(t, s)
	s.AddFault(pve.Fault{Kind: pve.FaultError, Path: "/nodes/*/network", Status: http.StatusNotImplemented, Reason: "not implemented"})

	shape := newSpec(1).Shape
	shape.Bridge = "vmbr0"

	_, err := p.Resolve(t.Context(), hypervisor.TemplateRef{Name: pve.DefaultTemplate}, shape)
	requireError(t, err, hypervisor.Rejected, "SDN.Use", "vmbr0")
}

// The builtin source uses Proxmox's own cloud-init, with the user data on a mounted snippets storage.
func TestBuiltin(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	m := fastModel()

	// The simulator gets the files of the storage from its model.
	files := map[string]string{}
	for _, part := range []string{"user", "meta"} {
		files[proxmox.SnippetName(operatorUID, "lab", newSpec(1).Owner.UID, part)] = "#cloud-config\n{}\n"
	}

	m.Storages = append([]pve.Storage(nil), m.Storages...)
	for i := range m.Storages {
		if m.Storages[i].Name == "local" {
			m.Storages[i].Snippets = files
		}
	}

	s := pvetest.New(t, m)
	p := connect(t, s, func(_ *hypervisor.Config, o *hypervisor.Options) { o.SnippetsPath = dir })

	sp := newSpec(1)
	sp.Shape.CloudInitSource, sp.Shape.SnippetsStorage = hypervisor.SourceBuiltin, "local"
	sp.Network = hypervisor.NetworkOptions{
		Addresses: []string{"10.0.0.5/24", "fd00::5/64"}, Gateways: []string{"10.0.0.1", "fd00::1"},
		DNSServers: []string{"10.0.0.2", "10.0.0.3"}, SearchDomains: []string{"ci.example.com"},
	}

	if _, err := p.Resolve(t.Context(), sp.Template, sp.Shape); err != nil {
		t.Fatal(err)
	}

	// Another user of the storage knows the name of the snippet.
	target := filepath.Join(t.TempDir(), "target")
	planted := filepath.Join(dir, proxmox.SnippetName(operatorUID, "lab", sp.Owner.UID, "user")+".part")

	if err := os.Symlink(target, planted); err != nil {
		t.Fatal(err)
	}

	made, sp := create(t, p, sp)

	if text, err := os.ReadFile(target); err == nil {
		t.Errorf("the snippet was written through a symbolic link: %s", text)
	}

	found, err := filepath.Glob(filepath.Join(dir, "hf-*-user.yaml"))
	if err != nil || len(found) != 1 {
		t.Fatalf("snippets: %v (%v)", found, err)
	}

	if info, err := os.Stat(found[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v)", info.Mode(), err)
	}

	vm, _ := s.Snapshot().VM(made.ID)
	for option, want := range map[string]string{
		"ipconfig0":  "ip=10.0.0.5/24,ip6=fd00::5/64,gw=10.0.0.1,gw6=fd00::1",
		"nameserver": "10.0.0.2 10.0.0.3", "searchdomain": "ci.example.com", "ciupgrade": "0",
	} {
		if vm.Config[option] != want {
			t.Errorf("%s is %q, want %q", option, vm.Config[option], want)
		}
	}

	if custom := vm.Config["cicustom"]; !strings.Contains(custom, "user=local:snippets/hf-") {
		t.Errorf("cicustom is %q", custom)
	}

	remove(t, p, sp)

	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("snippets left: %v (%v)", left, err)
	}
}

// The created machine has the requested configuration.
func TestConfiguration(t *testing.T) {
	t.Parallel()

	m := fastModel()
	m.Bridges = []string{"vmbr0", "vmbr1"}
	m.Templates = append([]pve.Template(nil), m.Templates...)
	m.Templates[0].Config = map[string]string{
		"tags": "golden;base", "onboot": "1", "protection": "1", "sockets": "2", "balloon": "4096",
		"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,tag=7",
	}

	s := pvetest.New(t, m)
	p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) { c.Tags = map[string]string{"site": "Berlin"} })
	sp := newSpec(1)
	sp.Shape.Bridge, sp.Shape.VLAN, sp.Shape.Disk = "vmbr1", 42, 30*gib

	made, _ := create(t, p, sp)
	vm, _ := s.Snapshot().VM(made.ID)

	for option, want := range map[string]string{
		"cores": "2", "memory": "2048", "sockets": "1", "balloon": "2048", "onboot": "0", "protection": "0", "name": "claim-1",
	} {
		if vm.Config[option] != want {
			t.Errorf("%s is %q, want %q", option, vm.Config[option], want)
		}
	}

	if strings.Contains(vm.Tags, "golden") || !strings.Contains(vm.Tags, "hf-pool-linux") || !strings.Contains(vm.Tags, "site-berlin") {
		t.Errorf("tags: %s", vm.Tags)
	}

	if net := vm.Config["net0"]; net != "virtio="+made.MAC+",bridge=vmbr1,firewall=1,tag=42" || made.MAC == "BC:24:11:00:00:01" {
		t.Errorf("net0 is %s, MAC %s", net, made.MAC)
	}

	if made.Name != "claim-1" {
		t.Errorf("the machine's name is %q", made.Name)
	}

	if disk := vm.Config["scsi0"]; !strings.Contains(disk, "size=30G") {
		t.Errorf("scsi0 is %s", disk)
	}

	if vm.Pool != pve.DefaultPool {
		t.Errorf("pool is %q", vm.Pool)
	}
}
