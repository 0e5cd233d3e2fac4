// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	proxmox "github.com/luthermonson/go-proxmox"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// TestGoProxmoxClient drives a whole life of a VM with the client library the
// product uses, by token and by ticket.
func TestGoProxmoxClient(t *testing.T) {
	t.Parallel()
	for name, auth := range map[string]proxmox.Option{
		"token":  proxmox.WithAPIToken(pve.DefaultTokenID, pve.DefaultSecret),
		"ticket": proxmox.WithCredentials(&proxmox.Credentials{Username: pve.DefaultUser, Password: pve.DefaultPassword}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := pve.DefaultModel()
			m.Delays = pve.Delays{Clone: 20 * time.Millisecond, Boot: 10 * time.Millisecond}
			s := pvetest.New(t, m)
			c := proxmox.NewClient(s.URL()+"/api2/json", proxmox.WithHTTPClient(s.HTTPClient()), auth)
			lifeOfVM(t, s, c)
		})
	}
}

func lifeOfVM(t *testing.T, s *pve.Server, c *proxmox.Client) {
	t.Helper()
	ctx := t.Context()
	wait := func(task *proxmox.Task, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if err := task.Wait(ctx, 5*time.Millisecond, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		if !task.IsSuccessful {
			t.Fatalf("task %s: %s", task.Type, task.ExitStatus)
		}
	}
	if v, err := c.Version(ctx); err != nil || v.Version != "9.0.3" {
		t.Fatalf("version %v %v", v, err)
	}
	nodes, err := c.Nodes(ctx)
	if err != nil || len(nodes) != 3 {
		t.Fatalf("nodes %v %v", nodes, err)
	}
	node, err := c.Node(ctx, "pve1")
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := node.VirtualMachine(ctx, 9001)
	if err != nil {
		t.Fatal(err)
	}
	_, task, err := tmpl.Clone(ctx, &proxmox.VirtualMachineCloneOptions{NewID: 1000, Name: "runner-1"})
	wait(task, err)
	vm, err := node.VirtualMachine(ctx, 1000)
	if err != nil || vm.Name != "runner-1" {
		t.Fatalf("clone %+v %v", vm, err)
	}
	wait(vm.Config(ctx, proxmox.VirtualMachineOption{Name: "cores", Value: 4}))
	iso := filepath.Join(t.TempDir(), "seed.iso")
	if err := os.WriteFile(iso, testISO(t, map[string]string{"user-data": "#cloud-config\n"}), 0o600); err != nil {
		t.Fatal(err)
	}
	local, err := node.Storage(ctx, "local")
	if err != nil {
		t.Fatal(err)
	}
	wait(local.Upload("iso", iso))
	wait(vm.Config(ctx, proxmox.VirtualMachineOption{Name: "ide2", Value: "local:iso/seed.iso,media=cdrom"}))
	wait(vm.Start(ctx))
	if err := vm.Ping(ctx); err != nil || vm.Status != "running" || *vm.VirtualMachineConfig.Cores != 4 {
		t.Fatalf("after start: %+v %v", vm, err)
	}
	wait(vm.Stop(ctx))
	wait(vm.Delete(ctx, nil))
	wait(local.DeleteContent(ctx, "local:iso/seed.iso"))
	if st := s.Snapshot(); len(st.Made()) != 0 || len(st.ISOs()) != 0 {
		t.Fatalf("left over: %+v %+v", st.Made(), st.ISOs())
	}
}
