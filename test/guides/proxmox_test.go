// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

const (
	shellRole        = "HyperFleetShell"
	permissionsGuide = "../../docs/guides/proxmox-permissions.md"
	isoStorage       = "hyperfleet-iso"
	waitTimeout      = time.Minute
	gib              = int64(1) << 30
)

var (
	roleCommand  = regexp.MustCompile(`(?m)^ *pveum role add (\S+) --privs "([^"]+)"$`)
	grantCommand = regexp.MustCompile(`(?m)^ *pveum acl modify (\S+) --users (\S+) --roles (\S+)$`)
)

// newGuideModel returns the default cluster with the roles and grants of the guide's commands. If pool is true, it
// uses the commands for a resource pool.
func newGuideModel(t testing.TB, pool bool) pve.Model {
	t.Helper()

	raw, err := os.ReadFile(permissionsGuide)
	if err != nil {
		t.Fatal(err)
	}

	model := pve.DefaultModel()
	model.StatusLag, model.Roles, model.ACL, model.Pools = 0, nil, nil, []string{"ci"}
	model.Storages = append(model.Storages, pve.Storage{Name: isoStorage, Type: "dir", Content: []string{"iso"}, Size: 10 * gib})

	// The guide grants the operator the resource mapping gpu.
	model.Nodes[0].PCI = []pve.PCIDevice{{Address: "0000:01:00.0", ID: "10de:2235"}}
	model.PCIMappings = []pve.PCIMapping{{ID: "gpu", Map: []string{"node=pve1,path=0000:01:00.0,id=10de:2235,iommugroup=0"}}}

	for i := range model.Storages {
		if model.Storages[i].Name != isoStorage {
			model.Storages[i].Content = slices.DeleteFunc(model.Storages[i].Content, func(c string) bool { return c == "iso" })
		}
	}

	for i := range model.Tokens {
		model.Tokens[i].NoPrivSep = true
	}

	for _, role := range roleCommand.FindAllStringSubmatch(string(raw), -1) {
		model.Roles = append(model.Roles, pve.Role{Name: role[1], Privileges: strings.Fields(role[2])})
	}

	for _, grant := range grantCommand.FindAllStringSubmatch(string(raw), -1) {
		if path := grant[1]; path == "/vms" && pool || strings.HasPrefix(path, "/pool/") && !pool {
			continue
		}

		for role := range strings.SplitSeq(grant[3], ",") {
			for _, path := range expandPath(grant[1]) {
				model.ACL = append(model.ACL, pve.ACL{Path: path, Principal: grant[2], Role: role})
			}
		}
	}

	if len(model.Roles) < 7 || len(model.ACL) < 6 {
		t.Fatalf("found %d roles and %d grants in the guide", len(model.Roles), len(model.ACL))
	}

	return model
}

// expandPath replaces the path of the guide's template with those of the templates of all nodes.
func expandPath(path string) []string {
	if path != "/vms/9000" {
		return []string{path}
	}

	model := pve.DefaultModel()
	paths := make([]string, 0, len(model.Nodes))

	for i := range model.Nodes {
		paths = append(paths, "/vms/"+strconv.Itoa(model.Templates[0].VMID+i))
	}

	return paths
}

// connect connects to the server as the operator.
func connect(t testing.TB, server *pve.Server, pool bool, secret string) hypervisor.Connection {
	t.Helper()

	tls, err := hypervisor.NewTLSConfig(&v1alpha1.HypervisorTLS{Fingerprint: server.Fingerprint()}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}

	config := hypervisor.Config{
		Name: "guide", Endpoint: server.URL() + "/api2/json", TLS: tls, ISOStorage: isoStorage, DefaultNetwork: "vmbr0",
		Credentials: hypervisor.Credentials{TokenID: pve.DefaultTokenID, TokenSecret: secret},
		IDMin:       100000, IDMax: 100999, ClonesPerStorage: 2, CallsPerNode: 4,
	}
	if pool {
		config.ResourcePool = "ci"
	}

	provider, err := proxmox.New(config, hypervisor.Options{
		OperatorUID: "11111111-2222-3333-4444-555555555555", Wake: func(hypervisor.Owner) {},
		TaskInterval: 5 * time.Millisecond, ListInterval: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(provider.Close)

	return provider
}

// callUntilDone repeats an asynchronous call until it is done.
func callUntilDone(t testing.TB, what string, call func() (bool, error)) {
	t.Helper()

	deadline := time.Now().Add(waitTimeout)

	for {
		done, err := call()
		if done {
			return
		}

		if hypervisor.Is(err, hypervisor.Rejected) || time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}

		time.Sleep(2 * time.Millisecond)
	}
}

// TestPermissionsGuide checks that with only the privileges of the guide the operator's check succeeds, and a
// machine can be created and deleted with its cloud-init ISO.
func TestPermissionsGuide(t *testing.T) {
	t.Parallel()

	for _, pool := range []bool{true, false} {
		t.Run(fmt.Sprintf("pool=%t", pool), func(t *testing.T) {
			t.Parallel()

			server := pvetest.New(t, newGuideModel(t, pool))
			provider := connect(t, server, pool, pve.DefaultSecret)

			info, err := provider.Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}

			if len(info.Warnings) > 0 {
				t.Errorf("warnings: %q", info.Warnings)
			}

			createAndDelete(t, provider, hypervisor.TemplateRef{Name: pve.DefaultTemplate}, newGuideShape())

			left := server.Snapshot()
			if isos := left.ISOs(); len(isos) > 0 {
				t.Errorf("cloud-init ISOs are left: %v", isos)
			}

			for _, vm := range left.VMs {
				if !vm.Foreign {
					t.Errorf("VM %d is left", vm.VMID)
				}
			}
		})
	}
}

// newGuideShape returns a shape that needs all grants of the guide.
func newGuideShape() hypervisor.Shape {
	return hypervisor.Shape{
		CPU: 2, Memory: 2 * gib, Linked: true, Bridge: "vmbr0", CloudInitSource: hypervisor.SourceNoCloud,
		Devices: []hypervisor.Device{{Name: "gpu", Count: 1}},
	}
}

// createAndDelete creates a machine and deletes it.
func createAndDelete(t testing.TB, provider hypervisor.Provider, template hypervisor.TemplateRef, shape hypervisor.Shape) {
	t.Helper()

	machine := hypervisor.MachineSpec{
		Owner:    hypervisor.Owner{Namespace: "ci", Name: "claim", UID: "00000000-0000-4000-8000-000000000001", Pool: "linux"},
		Hostname: "claim", Template: template, Shape: shape,
	}
	seed := func(context.Context) (hypervisor.Seed, error) {
		return hypervisor.Seed{UserData: []byte("#cloud-config\n{}\n"), MetaData: []byte("instance-id: x\n")}, nil
	}

	if _, err := provider.Resolve(t.Context(), machine.Template, machine.Shape); err != nil {
		t.Fatal(err)
	}

	reserved, err := provider.Reserve(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}

	machine.ID, machine.Node = reserved.ID, reserved.Node

	callUntilDone(t, "start", func() (bool, error) {
		made, err := provider.Start(t.Context(), machine, seed)

		return err == nil && made.State == hypervisor.StateRunning, err
	})
	useShell(t, provider, hypervisor.MachineRef{ID: machine.ID, Owner: machine.Owner})
	callUntilDone(t, "delete", func() (bool, error) {
		err := provider.Delete(t.Context(), hypervisor.MachineRef{ID: machine.ID, Owner: machine.Owner})

		return hypervisor.Is(err, hypervisor.NotFound), err
	})
}

// useShell opens the console of the machine and runs a command in it.
func useShell(t testing.TB, provider hypervisor.Provider, ref hypervisor.MachineRef) {
	t.Helper()

	terminal, isTerminal := provider.(hypervisor.Terminal)
	executor, isExecutor := provider.(hypervisor.Executor)

	if !isTerminal || !isExecutor {
		t.Fatal("the provider has no shells")
	}

	console, err := terminal.OpenTerminal(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}

	if err := console.Close(); err != nil {
		t.Error(err)
	}

	callUntilDone(t, "run a command", func() (bool, error) {
		got, err := executor.Execute(t.Context(), ref, []string{"echo", "a"})

		return err == nil && string(got.Stdout) == "a\n", err
	})
}

// listUnchecked returns privileges that the operator's check ignores, and what they are for.
func listUnchecked() map[string]string {
	return map[string]string{
		"HyperFleetVM VM.GuestAgent.Audit":      "reading the addresses of running machines",
		"HyperFleetVM VM.Config.Cloudinit":      "cloudInitSource builtin",
		"HyperFleetISO Datastore.AllocateSpace": "attaching a file needs this or Datastore.Audit",
	}
}

// TestPermissionsGuideIsMinimal checks that the operator reports the lack of each role and privilege of the guide.
func TestPermissionsGuideIsMinimal(t *testing.T) {
	t.Parallel()

	full := newGuideModel(t, false)

	for i, role := range full.Roles {
		if role.Name == "HyperFleetPool" || role.Name == shellRole {
			continue // granted on the pool only, or only for users who ask for a shell
		}

		t.Run(role.Name, func(t *testing.T) {
			t.Parallel()

			model := newGuideModel(t, false)
			model.ACL = slices.DeleteFunc(model.ACL, func(a pve.ACL) bool { return a.Role == role.Name })
			checkMissing(t, model, role.Name)
		})

		for _, privilege := range role.Privileges {
			name := role.Name + " " + privilege
			if listUnchecked()[name] != "" {
				continue
			}

			t.Run(name, func(t *testing.T) {
				t.Parallel()

				model := newGuideModel(t, false)
				model.Roles[i].Privileges = slices.DeleteFunc(model.Roles[i].Privileges, func(p string) bool { return p == privilege })
				checkMissing(t, model, privilege+" of "+role.Name)
			})
		}
	}
}

// checkMissing checks that the operator reports an error with the grants of the model.
func checkMissing(t *testing.T, model pve.Model, what string) {
	t.Helper()

	provider := connect(t, pvetest.New(t, model), false, pve.DefaultSecret)

	_, err := provider.Check(t.Context())
	if err == nil {
		_, err = provider.Resolve(t.Context(), hypervisor.TemplateRef{Name: pve.DefaultTemplate}, newGuideShape())
	}

	if err == nil {
		t.Errorf("the operator reports no error without %s", what)
	}
}
