// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// TestEveryCall sends each call of the simulator and checks the keys in the response on which
// clients depend.
func TestEveryCall(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) { *m = m.WithSharedStorage() })
	root := a.asRoot()
	a.clone("1000", formData{"pool": "ci"})
	if got := a.upload("pve1", "local", "iso", "seed.iso", []byte("data")); a.waitForTask(got.data) != "OK" {
		t.Fatal(got)
	}
	a.mustRunTask("POST", "/nodes/pve1/qemu/1000/status/start", nil)
	upid := fmt.Sprint(a.mustDo("POST", "/nodes/pve1/qemu/1000/config", formData{"cores": "3"}))
	a.waitForTask(upid)
	for _, tc := range []struct {
		method, path string
		params       formData
		want         string // keys, or a value after =
		as           *rawClient
	}{
		{method: "POST", path: "/access/ticket", params: formData{"username": "root@pam", "password": pve.DefaultPassword},
			want: "username ticket CSRFPreventionToken cap"},
		{method: "POST", path: "/access/ticket", params: formData{"username": "root", "realm": "pam", "password": pve.DefaultPassword},
			want: "username ticket"},
		{method: "GET", path: "/version", want: "version release repoid"},
		{method: "GET", path: "/access/permissions", want: "/vms /nodes /storage/local"},
		{method: "GET", path: "/access/permissions", params: formData{"path": "/vms/1000"}, want: "/vms/1000"},
		{method: "GET", path: "/nodes", want: "[] node status cpu maxcpu mem maxmem uptime ssl_fingerprint"},
		{method: "GET", path: "/nodes/pve1/status", want: "cpu memory cpuinfo loadavg pveversion"},
		{method: "GET", path: "/nodes/pve1/version", want: "version"},
		{method: "GET", path: "/cluster/status", want: "[] type name quorate nodes", as: root},
		{method: "GET", path: "/cluster/resources", params: formData{"type": "vm"},
			want: "[] id type vmid node name status template maxcpu maxmem maxdisk uptime"},
		{method: "GET", path: "/cluster/resources", params: formData{"type": "node"}, want: "[] id type node status"},
		{method: "GET", path: "/cluster/resources", params: formData{"type": "storage"},
			want: "[] id type storage node status plugintype content shared disk maxdisk"},
		{method: "GET", path: "/cluster/nextid", want: "=102"},
		{method: "GET", path: "/cluster/nextid", params: formData{"vmid": "555"}, want: "=555"},
		{method: "GET", path: "/cluster/tasks", want: "[] upid status endtime type id user starttime", as: root},
		{method: "GET", path: "/nodes/pve1/tasks", want: "[] upid status endtime"},
		{method: "GET", path: "/nodes/pve1/tasks/" + upid + "/status",
			want: "upid status exitstatus type id user tokenid node pid pstart starttime"},
		{method: "GET", path: "/nodes/pve1/tasks/" + upid + "/log", want: "[] n t"},
		{method: "DELETE", path: "/nodes/pve1/tasks/" + upid, want: "=<nil>"},
		{method: "GET", path: "/nodes/pve1/qemu", want: "[] vmid name status"},
		{method: "GET", path: "/nodes/pve1/qemu/1000/config",
			want: "name cores memory scsi0 net0 agent digest smbios1 vmgenid ide2 boot"},
		{method: "GET", path: "/nodes/pve1/qemu/1000/pending", want: "[] key value"},
		{method: "GET", path: "/nodes/pve1/qemu/1000/status/current", want: "vmid name status qmpstatus agent ha uptime pid"},
		{method: "PUT", path: "/nodes/pve1/qemu/1000/config", params: formData{"tags": "b"}, want: "=<nil>"},
		{method: "PUT", path: "/nodes/pve1/qemu/1000/resize", params: formData{"disk": "scsi0", "size": "30G"}, want: "=UPID"},
		{method: "POST", path: "/nodes/pve1/qemu/1000/agent/ping", want: "result"},
		{method: "GET", path: "/nodes/pve1/qemu/1000/agent/info", want: "result"},
		{method: "GET", path: "/nodes/pve1/qemu/1000/agent/network-get-interfaces", want: "result"},
		{method: "GET", path: "/nodes/pve1/storage", want: "[] storage type content shared active enabled avail total used"},
		{method: "GET", path: "/nodes/pve1/storage/local/status", want: "type content shared active avail total"},
		{method: "GET", path: "/nodes/pve1/storage/local/content", params: formData{"content": "iso"},
			want: "[] volid content size ctime format"},
		{method: "GET", path: "/nodes/pve1/storage/local/content/local:iso/seed.iso", want: "path size used format"},
		{method: "GET", path: "/pools", want: "[] poolid"},
		{method: "GET", path: "/pools/ci", want: "members"},
		{method: "GET", path: "/pools", params: formData{"poolid": "ci"}, want: "[] poolid members"},
		{method: "POST", path: "/nodes/pve1/qemu/1000/status/shutdown", params: formData{"timeout": "1"}, want: "=UPID"},
		{method: "POST", path: "/nodes/pve1/qemu/1000/status/stop", want: "=UPID"},
		{method: "POST", path: "/nodes/pve1/qemu/1000/template", want: "=UPID"},
		{method: "DELETE", path: "/nodes/pve1/storage/local/content/local:iso/seed.iso", want: "=UPID"},
		{method: "DELETE", path: "/nodes/pve1/qemu/1000",
			params: formData{"purge": "1", "destroy-unreferenced-disks": "1"}, want: "=UPID"},
	} {
		caller := a
		if tc.as != nil {
			caller = tc.as
		}
		data := caller.mustDo(tc.method, tc.path, tc.params)
		if up, ok := data.(string); ok && strings.HasPrefix(up, "UPID:") {
			if exit := a.waitForTask(up); exit != "OK" {
				t.Errorf("%s %s: task ended with %q", tc.method, tc.path, exit)
			}
		}
		checkShape(t, tc.method+" "+tc.path, data, tc.want)
	}
	if left := a.s.Snapshot().CreatedVMs(); len(left) != 0 {
		t.Errorf("left over: %+v", left)
	}
}

func checkShape(t *testing.T, what string, data any, want string) {
	t.Helper()
	if value, ok := strings.CutPrefix(want, "="); ok {
		if got := fmt.Sprint(data); !strings.HasPrefix(got, value) {
			t.Errorf("%s: got %s, want %s", what, got, value)
		}
		return
	}
	keys := strings.Fields(want)
	if keys[0] == "[]" {
		list, ok := data.([]any)
		if !ok || len(list) == 0 {
			t.Errorf("%s: got %v, want a list", what, data)
			return
		}
		data, keys = list[0], keys[1:]
	}
	m, _ := data.(map[string]any)
	for _, k := range keys {
		if _, ok := m[k]; !ok {
			t.Errorf("%s: no %q in %v", what, k, m)
		}
	}
}

// TestErrorRows checks the status, the reason phrase and the body of each documented error.
func TestErrorRows(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) {
		m.ACL = append(m.ACL, pve.ACL{Path: "/vms/101", Principal: pve.DefaultUser, Role: "NoAccess"})
		m.Templates = append(m.Templates, pve.Template{
			Name: "bare", VMID: 9100, Nodes: []string{"pve1"}, Storage: "local-lvm", NoAgent: true, NoCloudInit: true,
		})
	})
	root := a.asRoot()
	a.clone("1000", nil)
	a.clone("1001", nil)
	a.s.SetLock(1001, "clone")
	for _, tc := range []struct {
		name, method, path string
		params             formData
		status             int
		reason             string
		fields             map[string]any
		as                 *rawClient
		empty              bool // has no body
	}{
		{name: "missing parameter", method: "POST", path: "/nodes/pve1/qemu/9001/clone", status: 400,
			reason: "Parameter verification failed.",
			fields: map[string]any{"newid": "property is missing and it is not optional"}, as: root},
		{name: "unknown parameter", method: "GET", path: "/nodes/pve1/qemu", params: formData{"x": "1"}, status: 400,
			reason: "Parameter verification failed.",
			fields: map[string]any{"x": "property is not defined in schema and the schema does not allow additional properties"}},
		{name: "wrong type", method: "GET", path: "/cluster/nextid", params: formData{"vmid": "a"}, status: 400,
			reason: "Parameter verification failed.", fields: map[string]any{"vmid": "type check ('integer') failed - got 'a'"}},
		{name: "vmid too small", method: "GET", path: "/cluster/nextid", params: formData{"vmid": "99"}, status: 400,
			reason: "Parameter verification failed.", fields: map[string]any{"vmid": "invalid format - value does not look like a valid VM ID\n"}},
		{name: "id taken", method: "GET", path: "/cluster/nextid", params: formData{"vmid": "100"}, status: 400,
			reason: "Parameter verification failed.", fields: map[string]any{"vmid": "VM 100 already exists"}},
		{name: "no permission", method: "GET", path: "/nodes/pve2/qemu/101/config", status: 403,
			reason: "Permission check failed (/vms/101, VM.Audit)"},
		{name: "no such vm", method: "GET", path: "/nodes/pve1/qemu/777/config", status: 500,
			reason: "Configuration file 'nodes/pve1/qemu-server/777.conf' does not exist"},
		{name: "vm on another node", method: "GET", path: "/nodes/pve2/qemu/1000/status/current", status: 500,
			reason: "Configuration file 'nodes/pve2/qemu-server/1000.conf' does not exist"},
		{name: "destroy of no such vm", method: "DELETE", path: "/nodes/pve1/qemu/777", status: 500,
			reason: "Configuration file 'nodes/pve1/qemu-server/777.conf' does not exist"},
		{name: "locked", method: "PUT", path: "/nodes/pve1/qemu/1001/config", params: formData{"cores": "1"}, status: 500,
			reason: "VM is locked (clone)"},
		{name: "skiplock by a token", method: "PUT", path: "/nodes/pve1/qemu/1001/config",
			params: formData{"cores": "1", "skiplock": "1"}, status: 400, reason: "Parameter verification failed.",
			fields: map[string]any{"skiplock": "Only root may use this option."}},
		{name: "running", method: "DELETE", path: "/nodes/pve1/qemu/100", status: 500,
			reason: "VM 100 is running - destroy failed", as: root},
		{name: "agent of a stopped VM", method: "GET", path: "/nodes/pve1/qemu/9100/agent/network-get-interfaces",
			status: 500, reason: "VM 9100 is not running", as: root},
		{name: "unknown node", method: "GET", path: "/nodes/nope/qemu", status: 500,
			reason: "hostname lookup 'nope' failed - failed to get address info for: nope: Temporary failure in name resolution"},
		{name: "unknown storage", method: "GET", path: "/nodes/pve1/storage/nope/status", status: 400,
			reason: "Parameter verification failed.", fields: map[string]any{"storage": "No such storage."}, as: root},
		{name: "content of an unknown storage", method: "GET", path: "/nodes/pve1/storage/nope/content", status: 500,
			reason: "storage 'nope' does not exist", as: root},
		{name: "unknown pool", method: "GET", path: "/pools/nope", status: 500, reason: "pool 'nope' does not exist", as: root},
		{name: "no right to clone", method: "POST", path: "/nodes/pve1/qemu/9001/clone", params: formData{"newid": "101"}, status: 403,
			reason: "Permission check failed"},
		{name: "no right to upload", method: "POST", path: "/nodes/pve1/storage/local-lvm/upload", status: 403,
			reason: "Permission check failed (/storage/local-lvm, Datastore.AllocateTemplate)", empty: true},
		{name: "broken upid", method: "GET", path: "/nodes/pve1/tasks/x/status", status: 400,
			reason: "Parameter verification failed.", fields: map[string]any{"upid": "unable to parse worker upid"}},
		{name: "unknown task", method: "GET", path: "/nodes/pve1/tasks/UPID:pve1:00000001:00000001:00000001:qmstart:1:root@pam:/status",
			status: 400, reason: "Parameter verification failed.", fields: map[string]any{"upid": "no such task"}},
		{name: "wrong password", method: "POST", path: "/access/ticket", params: formData{"username": "root@pam", "password": "x"},
			status: 401, reason: "authentication failure"},
		{name: "no credentials", method: "GET", path: "/version", status: 401, reason: "No ticket", empty: true,
			as: &rawClient{t: t, s: a.s, client: a.client}},
		{name: "wrong secret", method: "GET", path: "/version", status: 401, reason: "Authentication failed!", empty: true,
			as: a.withToken(pve.DefaultTokenID, "nope")},
		{name: "unknown token", method: "GET", path: "/version", status: 401,
			reason: "Authentication failed!", empty: true, as: a.withToken("hyperfleet@pve!x", "nope")},
		{name: "unknown user", method: "GET", path: "/version", status: 401, reason: "Authentication failed!", empty: true,
			as: a.withToken("a@pve!x", "nope")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			caller := a
			if tc.as != nil {
				caller = tc.as
			}
			got := caller.do(tc.method, tc.path, tc.params)
			if got.status != tc.status || got.reason != tc.reason {
				t.Errorf("got %d %q, want %d %q (%v)", got.status, got.reason, tc.status, tc.reason, got.body)
			}
			var message any = tc.reason + "\n"
			if tc.empty {
				message = nil
			}
			if got.body["message"] != message || got.data != nil || got.text != "" {
				t.Errorf("body %v %q", got.body, got.text)
			}
			fields, _ := got.body["errors"].(map[string]any)
			if d := cmp.Diff(tc.fields, fields); d != "" {
				t.Errorf("fields: %s", d)
			}
		})
	}
}

// TestBodyOnGetOrDelete checks that pveproxy refuses unexpected content.
func TestBodyOnGetOrDelete(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	for _, method := range []string{"GET", "DELETE"} {
		got := a.send(method, "/nodes/pve1/qemu/9001", "application/x-www-form-urlencoded", strings.NewReader("purge=1"))
		if got.status != 501 || got.reason != "Unexpected content for method '"+method+"'" {
			t.Errorf("%s: %d %s", method, got.status, got.reason)
		}
	}
}

// recorder is a testing.TB that only records errors.
type recorder struct {
	testing.TB

	errors  []string
	cleanup []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanup = append(r.cleanup, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// TestUnknownCall checks that an unknown call returns 501 and fails the test in which it is made.
func TestUnknownCall(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]struct {
		status        int
		reason, error string
	}{
		"/api2/json/version": {200, "OK", ""},
		"/api2/json/cluster/nope": {
			501, "Method 'GET /cluster/nope' not implemented", "violation: unknown call: GET /cluster/nope",
		},
		"/api2/extjs/cluster/nope": {200, "OK", "violation: unknown call: GET /cluster/nope"},
		"/api2/yaml/version":       {501, "no formatter for uri /version, yaml", "violation: no such path: GET /api2/yaml/version"},
	} {
		r := &recorder{TB: t}
		s := pvetest.New(r, pve.DefaultModel())
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "PVEAPIToken="+pve.DefaultTokenID+"="+pve.DefaultSecret)
		res, err := s.HTTPClient().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want.status || !strings.HasSuffix(res.Status, want.reason) {
			t.Errorf("%s: %s", path, res.Status)
		}
		for _, f := range r.cleanup {
			f()
		}
		if got := strings.Join(r.errors, "\n"); !strings.HasSuffix(got, want.error) || (want.error == "") != (got == "") {
			t.Errorf("%s: %q, want %q", path, got, want.error)
		}
	}
}

// TestJSONBody checks parameters in JSON.
func TestJSONBody(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.clone("1000", nil)
	got := a.send("PUT", "/nodes/pve1/qemu/1000/config", "application/json",
		strings.NewReader(`{"cores":4,"onboot":true,"name":"json"}`))
	if got.status != 200 {
		t.Fatal(got)
	}
	c := a.getConfig("1000")
	if c["cores"] != 4.0 || c["onboot"] != 1.0 || c["name"] != "json" {
		t.Errorf("config %v", c)
	}
	for _, body := range []string{`{`, `[1]`} {
		if got := a.send("PUT", "/nodes/pve1/qemu/1000/config", "application/json", strings.NewReader(body)); got.status < 400 {
			t.Errorf("%s: accepted", body)
		}
	}
	got = a.send("PUT", "/nodes/pve1/qemu/1000/config", "application/json", strings.NewReader(`{"tags":["a"]}`))
	if got.status != 400 {
		t.Errorf("list accepted: %d", got.status)
	}
}

// TestHooksAndCounts checks the hooks before and after calls, and the counts of calls.
func TestHooksAndCounts(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	var seen []string
	remove := a.s.OnCall(func(c pve.Call) { seen = append(seen, fmt.Sprintf("%s %s %d", c.Phase, c.Class, c.Status)) })
	a.mustDo("GET", "/cluster/resources", formData{"type": "vm"})
	a.mustDo("GET", "/nodes/pve1/qemu/9001/config", nil)
	remove()
	a.mustDo("GET", "/version", nil)
	want := []string{"before listing 0", "after listing 200", "before vm 0", "after vm 200"}
	if d := cmp.Diff(want, seen); d != "" {
		t.Error(d)
	}
	got := a.s.Counts()
	if got.Total != 3 || got.ByClass[pve.ClassListing] != 1 || got.ByVM[9001] != 1 || got.Errors != 0 {
		t.Errorf("counts %+v", got)
	}
	a.s.ResetCalls()
	if got := a.s.Counts(); got.Total != 0 {
		t.Errorf("after reset: %+v", got)
	}
}

// A body of JSON that is null has no parameters. Go's clients send it for a map that is nil.
func TestNullBody(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.clone("1000", nil)
	got := a.send("POST", "/nodes/pve1/qemu/1000/status/start", "application/json", strings.NewReader("null"))
	if got.status != http.StatusOK {
		t.Fatalf("%d %s", got.status, got.reason)
	}
	a.waitForTask(got.data)
	if got := a.send("PUT", "/nodes/pve1/qemu/1000/config", "application/json", strings.NewReader("[1]")); got.status != http.StatusInternalServerError {
		t.Errorf("a list: %d %s", got.status, got.reason)
	}
}
