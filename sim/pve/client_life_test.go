// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	proxmox "github.com/luthermonson/go-proxmox"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// session is a client session that fails its test at the first error.
type session struct {
	t *testing.T
	c *proxmox.Client
}

func (l session) requireNoError(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l session) waitForTask(task *proxmox.Task, err error) {
	l.t.Helper()
	l.requireNoError(err)
	l.requireNoError(task.Wait(l.t.Context(), 5*time.Millisecond, 10*time.Second))
	if !task.IsSuccessful {
		l.t.Fatalf("task %s: %s", task.Type, task.ExitStatus)
	}
}

// TestClientCreatesVM makes the calls of tools that create VMs: an image from the network, a new VM,
// the VM's agent, power operations, snapshots. pvetest fails the test for each call that is not
// simulated.
func TestClientCreatesVM(t *testing.T) {
	t.Parallel()
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("iso")) }))
	t.Cleanup(files.Close)
	s := pvetest.New(t, pve.DefaultModel())
	l, ctx := session{t: t, c: newRootClient(s)}, t.Context()
	node, err := l.c.Node(ctx, "pve1")
	l.requireNoError(err)
	local, err := node.Storage(ctx, "local")
	l.requireNoError(err)
	l.waitForTask(local.DownloadURL(ctx, "iso", "tool.iso", files.URL+"/tool.iso"))
	option := func(k string, v any) proxmox.VirtualMachineOption {
		return proxmox.VirtualMachineOption{Name: k, Value: v}
	}
	l.waitForTask(node.NewVirtualMachine(ctx, 1000, option("name", "made"), option("memory", 1024), option("agent", "1"),
		option("scsi0", "local-lvm:8"), option("ide2", "local-lvm:cloudinit"), option("ciuser", "bob"),
		option("ide3", "local:iso/tool.iso,media=cdrom"), option("net0", "virtio,bridge=vmbr0")))
	vm, err := node.VirtualMachine(ctx, 1000)
	l.requireNoError(err)
	if got := vm.VirtualMachineConfig; got.Boot != "order=scsi0;ide2;net0" || got.SCSIs["scsi0"] != "local-lvm:vm-1000-disk-0,size=8G" {
		t.Errorf("created with boot %q, disk %q", got.Boot, got.SCSIs["scsi0"])
	}
	pending, err := vm.CloudInitPending(ctx)
	if err != nil || len(pending) != 1 {
		t.Errorf("cloud-init: %v %v", pending, err)
	}
	l.requireNoError(vm.CloudInitRegenerate(ctx))
	l.waitForTask(vm.Start(ctx))
	l.requireNoError(vm.WaitForAgent(ctx, 5))
	l.requireNoError(vm.AgentFileWrite(ctx, "/etc/motd", []byte("hello")))
	pid, err := vm.AgentExec(ctx, []string{"echo", "a", "b"}, "")
	l.requireNoError(err)
	if done, err := vm.WaitForAgentExecExit(ctx, pid, 5); err != nil || done.OutData != "a b\n" {
		t.Errorf("exec: %+v %v", done, err)
	}
	l.waitForTask(vm.Pause(ctx))
	l.waitForTask(vm.Resume(ctx))
	l.waitForTask(vm.Reset(ctx))
	l.waitForTask(vm.Reboot(ctx))
	l.waitForTask(vm.NewSnapshot(ctx, "before"))
	l.waitForTask(vm.Config(ctx, option("cores", 4)))
	l.waitForTask(vm.Snapshot("before").Rollback(ctx))
	if list, err := vm.Snapshots(ctx); err != nil || len(list) != 2 {
		t.Errorf("snapshots: %v %v", list, err)
	}
	l.waitForTask(vm.Snapshot("before").Delete(ctx))
	if conf := s.Snapshot().CreatedVMs()[0].Config; conf["cores"] != "" || conf["parent"] != "" {
		t.Errorf("after rollback: %v", conf)
	}
	if tasks, err := node.Tasks(ctx, &proxmox.NodeTasksOptions{Source: "all", VMID: 1000}); err != nil || len(tasks) < 8 {
		t.Errorf("tasks: %d %v", len(tasks), err)
	}
	l.waitForTask(vm.Delete(ctx, nil))
	if left := s.Snapshot().CreatedVMs(); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}

// TestClientAdministers manages users, roles, grants and pools, and explores the cluster.
func TestClientAdministers(t *testing.T) {
	t.Parallel()
	s := pvetest.New(t, pve.DefaultModel())
	l, ctx := session{t: t, c: newRootClient(s)}, t.Context()
	l.requireNoError(l.c.NewUser(ctx, &proxmox.NewUser{UserID: "ops@pve", Enable: true, Password: "a-long-one"}))
	l.requireNoError(l.c.NewRole(ctx, "Ops", "VM.Audit,VM.PowerMgmt"))
	l.requireNoError(l.c.NewPool(ctx, "lab", "a pool"))
	l.requireNoError(l.c.UpdateACL(ctx, proxmox.ACLOptions{Path: "/pool/lab", Users: "ops@pve", Roles: "Ops", Propagate: true}))
	pool, err := l.c.Pool(ctx, "lab")
	l.requireNoError(err)
	l.requireNoError(pool.Update(ctx, &proxmox.PoolUpdateOption{VirtualMachines: "101"}))
	ops := newRawClient(t, s).logIn("ops@pve", "a-long-one")
	ops.mustDo("GET", "/nodes/pve2/qemu/101/config", nil) // by the pool
	if got := ops.do("GET", "/nodes/pve1/qemu/100/config", nil); got.status != http.StatusForbidden {
		t.Errorf("not in the pool: %d", got.status)
	}
	l.requireNoError(pool.Update(ctx, &proxmox.PoolUpdateOption{VirtualMachines: "101", Delete: true}))
	l.requireNoError(pool.Delete(ctx))
	user, err := l.c.User(ctx, "ops@pve")
	l.requireNoError(err)
	token, err := user.NewAPIToken(ctx, proxmox.Token{TokenID: "ci", Privsep: false})
	if err != nil || token.FullTokenID != "ops@pve!ci" {
		t.Errorf("token: %+v %v", token, err)
	}
	newRawClient(t, s).withToken("ops@pve!ci", token.Value).mustDo("GET", "/version", nil)
	l.requireNoError(user.Delete(ctx))
	cluster, err := l.c.Cluster(ctx)
	l.requireNoError(err)
	for what, err := range map[string]error{
		"users": dropValue(l.c.Users(ctx)), "roles": dropValue(l.c.Roles(ctx)), "grants": dropValue(l.c.ACL(ctx)),
		"groups": dropValue(l.c.Groups(ctx)), "realms": dropValue(l.c.Domains(ctx)), "storages": dropValue(l.c.ClusterStorages(ctx)),
		"HA": dropValue(cluster.HAResources(ctx, "")), "firewall": dropValue(cluster.FirewallOptions(ctx)),
		"rules": dropValue(cluster.FirewallRules(ctx)), "HA status": dropValue(cluster.HAStatus(ctx)),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func dropValue[T any](_ T, err error) error { return err }

func newRootClient(s *pve.Server) *proxmox.Client {
	return proxmox.NewClient(s.URL()+"/api2/json", proxmox.WithHTTPClient(s.HTTPClient()),
		proxmox.WithCredentials(&proxmox.Credentials{Username: pve.RootUser, Password: pve.DefaultPassword}))
}
