// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package recordings_test

import (
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

const (
	gib          = int64(1) << 30
	rootPassword = "realpve"   // as in three-nodes.jsonl
	opPassword   = "hfpw12345" // as in auth.jsonl
)

// threeNodes is the recording of a cluster of three nodes. The others have one node.
const threeNodes = "three-nodes.jsonl"

// newModel returns the cluster that was recorded.
func newModel(file string) pve.Model {
	m := pve.DefaultModel()
	m.Cluster, m.Version = "realpve", "9.2.11"
	m.Nodes = []pve.Node{{Name: "pve1", CPUs: 2, Memory: 24 * gib}}

	if file == threeNodes {
		m.Nodes = append(m.Nodes, pve.Node{Name: "pve2", CPUs: 2, Memory: 24 * gib}, pve.Node{Name: "pve3", CPUs: 2, Memory: 24 * gib})
	}
	m.Storages = []pve.Storage{
		{Name: "local", Type: "dir", Content: []string{"images", "snippets", "iso", "rootdir", "backup", "vztmpl", "import"}, Size: 100 * gib},
		{Name: "hyperfleet-iso", Type: "dir", Content: []string{"iso"}, Size: 100 * gib},
		{Name: "disks", Type: "dir", Content: []string{"images"}, Size: 100 * gib},
	}
	m.Templates = []pve.Template{{
		Name: "hyperfleet-runner", VMID: 9000, Storage: "disks", DiskSize: 1, NoCloudInit: true,
		Config: map[string]string{
			"agent": "enabled=1", "boot": "order=scsi0", "cores": "1", "kvm": "0", "memory": "512", "ostype": "l26",
			"scsihw": "virtio-scsi-pci", "serial0": "socket",
		},
	}}

	if file == threeNodes {
		m.Storages = append(m.Storages, pve.Storage{
			Name: "shared", Type: "dir", Content: []string{"images", "iso"}, Size: 100 * gib, Shared: true,
		})
		// At once after a node was disconnected, the others had no route to it.
		m.Outage.Unroutable = 0
	}

	if file == "reads.jsonl" || file == threeNodes {
		m.Templates = nil // see newTemplate
	}

	m.VMs = nil
	m.Users = []pve.User{
		{ID: pve.RootUser, Password: rootPassword},
		{ID: "hyperfleet@pve", Password: opPassword, Comment: "HyperFleet operator"},
		{ID: "admin@pve"}, {ID: "auditor@pve"}, {ID: "nobody@pve"},
	}
	m.Tokens = []pve.Token{
		{ID: "root@pam!tt", Secret: secretOf("root"), NoPrivSep: true},
		{ID: "root@pam!realpve", Secret: secretOf("realpve"), NoPrivSep: true},
		{ID: "admin@pve!tt", Secret: secretOf("admin"), NoPrivSep: true},
		{ID: "auditor@pve!tt", Secret: secretOf("auditor"), NoPrivSep: true},
		{ID: "nobody@pve!tt", Secret: secretOf("nobody"), NoPrivSep: true},
		{ID: "hyperfleet@pve!operator", Secret: secretOf("op"), NoPrivSep: true},
		{ID: "hyperfleet@pve!sep", Secret: secretOf("sep")},
	}
	m.Roles = []pve.Role{
		{Name: "HyperFleetTemplate", Privileges: []string{"VM.Audit", "VM.Clone"}},
		{Name: "HyperFleetVM", Privileges: []string{
			"VM.Allocate", "VM.Audit", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Cloudinit", "VM.Config.Disk",
			"VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.GuestAgent.Audit", "VM.PowerMgmt",
		}},
		{Name: "HyperFleetDisk", Privileges: []string{"Datastore.AllocateSpace", "Datastore.Audit"}},
		{Name: "HyperFleetISO", Privileges: []string{
			"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit",
		}},
		{Name: "HyperFleetNet", Privileges: []string{"SDN.Use"}},
		{Name: "HyperFleetSys", Privileges: []string{"Sys.Audit"}},
		{Name: "HyperFleetPool", Privileges: []string{"Pool.Audit"}},
	}
	m.ACL = []pve.ACL{
		{Path: "/", Principal: "auditor@pve", Role: "PVEAuditor"},
		{Path: "/", Principal: "admin@pve", Role: "Administrator"},
	}

	grants := [][2]string{
		{"/nodes", "HyperFleetSys"}, {"/pool/ci", "HyperFleetPool"}, {"/pool/ci", "HyperFleetVM"},
		{"/sdn/zones/localnetwork/vmbr0", "HyperFleetNet"}, {"/storage/disks", "HyperFleetDisk"},
		{"/storage/hyperfleet-iso", "HyperFleetISO"}, {"/vms/9000", "HyperFleetTemplate"},
	}
	if file == threeNodes {
		grants = append(grants, [2]string{"/storage/shared", "HyperFleetDisk"}, [2]string{"/vms/9001", "HyperFleetTemplate"})
	}

	for _, grant := range grants {
		m.ACL = append(m.ACL, pve.ACL{Path: grant[0], Principal: "hyperfleet@pve", Role: grant[1]})
	}

	m.Pools = []string{"ci"}
	m.Missing = []pve.Missing{
		pve.MissingOVMF, pve.MissingQEMUPatches, pve.MissingQEMUTables, pve.MissingTUN, pve.MissingTimedate, pve.MissingSSH,
		pve.MissingPorts,
	}
	m.Limits = pve.Limits{}
	m.StatusLag = 0
	m.Guest = pve.Guest{Kind: pve.GuestNothing, IgnoreShutdown: true}
	m.Delays.Agent = 24 * time.Hour

	return m
}

// presets are the requests that bring a cluster into the state in which a recording began, which others
// had left.
var presets = map[string][]exchange{
	"pools.jsonl": leftVM, "listing.jsonl": leftVM, "create_delete.jsonl": leftVM,
	"reads.jsonl": newTemplate("9000", "hyperfleet-runner", "disks", map[string]any{"memory": "512", "serial0": "socket"}),
	threeNodes: append(newTemplate("9000", "hyperfleet-runner", "shared", map[string]any{"memory": "512", "serial0": "socket"}),
		newTemplate("9001", "local-template", "disks", map[string]any{"memory": "128"})...),
}

// newTemplate creates a template shortly before a recording, which lists its tasks.
func newTemplate(id, name, storage string, options map[string]any) []exchange {
	form := map[string]any{
		"vmid": id, "name": name, "agent": "enabled=1", "boot": "order=scsi0", "cores": "1", "kvm": "0",
		"ostype": "l26", "scsihw": "virtio-scsi-pci", "scsi0": storage + ":1,format=qcow2", "net0": "virtio,bridge=vmbr0",
	}
	maps.Copy(form, options)

	return []exchange{
		{As: "rootcookie", Method: "POST", Path: "/nodes/pve1/qemu", Form: form},
		{As: "rootcookie", Method: "POST", Path: "/nodes/pve1/qemu/" + id + "/template"},
	}
}

// leftVM is the VM that snapshots.jsonl left running, with the lock of a snapshot that failed.
var leftVM = []exchange{
	{As: "op", Method: "POST", Path: "/nodes/pve1/qemu/9000/clone", Form: map[string]any{"newid": "140501", "full": "0", "pool": "ci"}},
	{As: "op", Method: "PUT", Path: "/nodes/pve1/qemu/140501/config", Form: map[string]any{"kvm": "0", "memory": "128"}},
	{As: "op", Method: "POST", Path: "/nodes/pve1/qemu/140501/status/start"},
	{As: "rootcookie", Method: "PUT", Path: "/nodes/pve1/qemu/140501/config", Form: map[string]any{"lock": "snapshot"}},
}

// secretOf returns the token secret of a caller, a UUID.
func secretOf(caller string) string {
	return "00000000-0000-4000-8000-" + strings.Repeat("0", 12-len(caller)) + strings.Map(func(c rune) rune {
		return rune("0123456789abcdef"[int(c)%16])
	}, caller)
}

func tokenHeader(id, secret string) http.Header {
	return http.Header{"Authorization": {"PVEAPIToken=" + id + "=" + secret}}
}

// newCallers returns the header of each caller.
func newCallers(r *replayer) map[string]http.Header {
	out := map[string]http.Header{
		"none": {}, "root": tokenHeader("root@pam!tt", secretOf("root")), "admin": tokenHeader("admin@pve!tt", secretOf("admin")),
		"auditor": tokenHeader("auditor@pve!tt", secretOf("auditor")), "nobody": tokenHeader("nobody@pve!tt", secretOf("nobody")),
		"op": tokenHeader("hyperfleet@pve!operator", secretOf("op")), "sep": tokenHeader("hyperfleet@pve!sep", secretOf("sep")),
	}

	r.callers = out
	out["rootcookie"] = r.logIn(pve.RootUser, rootPassword)
	out["opcookie"] = r.logIn("hyperfleet@pve", opPassword)

	return out
}

// logIn returns the header of a caller with a ticket.
func (r *replayer) logIn(user, password string) http.Header {
	_, reason, body, err := r.send(exchange{
		As: "none", Method: http.MethodPost, Path: "/access/ticket", Form: map[string]any{"username": user, "password": password},
	})
	if err != nil {
		r.t.Fatal(err)
	}

	decoded, err := decodeJSON(body)
	if err != nil {
		r.t.Fatalf("log in as %s: %s: %v", user, reason, err)
	}

	answer, _ := decoded.(map[string]any)
	data, _ := answer["data"].(map[string]any)
	ticket, _ := data["ticket"].(string)
	csrf, _ := data["CSRFPreventionToken"].(string)

	return http.Header{"Cookie": {"PVEAuthCookie=" + ticket}, "Csrfpreventiontoken": {csrf}}
}

// credential returns the header of an exchange's caller. The recordings do not contain credentials; where one was
// wrong, the ID says how.
func (r *replayer) credential(e exchange) http.Header {
	const ticket, csrf = "Cookie", "Csrfpreventiontoken"

	header := r.callers[e.As].Clone()
	secret := secretOf("op")

	switch strings.TrimPrefix(e.ID, "auth/") {
	case "token: wrong secret", "three-nodes noquorum/wrong token", "three-nodes cluster/wrong token":
		return tokenHeader("hyperfleet@pve!operator", "00000000-0000-4000-8000-00000000dead")
	case "token: unknown user":
		return tokenHeader("nosuch@pve!operator", secret)
	case "token: unknown token":
		return tokenHeader("hyperfleet@pve!nosuch", secret)
	case "token: garbage":
		return http.Header{"Authorization": {"PVEAPIToken=garbage"}}
	case "token: no secret":
		return http.Header{"Authorization": {"PVEAPIToken=hyperfleet@pve!operator"}}
	case "token: blank": // a blank instead of the equals sign
		return http.Header{"Authorization": {"PVEAPIToken hyperfleet@pve!operator=" + secret}}
	case "token: secret twice":
		return tokenHeader("hyperfleet@pve!operator", secret+"="+secret)
	case "token: no realm":
		return tokenHeader("hyperfleet!operator", secret)
	case "token: unknown realm":
		return tokenHeader("hyperfleet@nosuch!operator", secret)
	case "cookie POST without csrf", "cookie DELETE without csrf":
		header.Del(csrf)
	case "cookie POST wrong csrf", "cookie PUT garbage csrf":
		header.Set(csrf, "garbage")
	case "cookie of another with csrf of root":
		header.Set(csrf, r.callers["rootcookie"].Get(csrf))
	case "cookie garbage":
		return http.Header{ticket: {"PVEAuthCookie=garbage"}}
	case "cookie tampered":
		return http.Header{ticket: {strings.Replace(r.callers["rootcookie"].Get(ticket), "root@pam", "admin@pve", 1)}}
	case "ticket as header":
		return http.Header{"Authorization": {strings.Replace(r.callers["rootcookie"].Get(ticket), "PVEAuthCookie=", "PVEAuthCookie ", 1)}}
	}

	if e.As == "u1use" && header == nil { // a token that was deleted
		return tokenHeader("u1@pve!use", secret)
	}

	return header
}
