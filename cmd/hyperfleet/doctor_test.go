// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/doctor"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// installation is a separate API server, because doctor reports on all objects of a cluster, and uninstall deletes
// them.
type installation struct{ *kube.Env }

// runDoctor runs doctor and returns its report.
func (i installation) runDoctor(t *testing.T, on *rest.Config, args ...string) *doctor.Report {
	t.Helper()

	got := execute(t, on, append([]string{"doctor", "--output", "json"}, args...)...)
	report := &doctor.Report{}

	if err := json.Unmarshal([]byte(got.out), report); err != nil {
		t.Fatalf("%v, %v: %s", got.err, err, got.out)
	}

	return report
}

// findingsOf returns the findings about a subject, one per line.
func findingsOf(report *doctor.Report, subject string) string {
	var lines []string

	for _, f := range report.Findings {
		if f.Subject == subject {
			lines = append(lines, string(f.Level)+" "+f.Message)
		}
	}

	return strings.Join(lines, "\n")
}

// objectFindings returns the level, kind, name and reason of the findings about objects.
func objectFindings(report *doctor.Report) []string {
	var out []string

	for _, f := range report.Findings {
		if f.Kind != "" {
			out = append(out, fmt.Sprintf("%s %s %s %s", f.Level, f.Kind, f.Name, f.Reason))
		}
	}

	return out
}

// expectOutput checks the exit code and the whole output of doctor, except its first line.
func (i installation) expectOutput(t *testing.T, code int, want string) {
	t.Helper()

	got := execute(t, i.Config, "doctor")
	if exit := cli.ExitCode(got.err); exit != code {
		t.Errorf("it ended with %d (%v), want %d", exit, got.err, code)
	}

	// The first line has the version of the API server, which differs.
	_, text, _ := strings.Cut(got.out, "\n")
	if want = strings.TrimPrefix(want, "\n"); text != want {
		t.Errorf("it printed:\n%s\nwant:\n%s", text, want)
	}
}

func newObject(kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "hyperfleet.io", Version: "v1alpha1", Kind: kind})
	o.SetNamespace(namespace)
	o.SetName(name)

	return o
}

// create creates an object and deletes it at the end of the test.
func (i installation) create(t *testing.T, o client.Object) {
	t.Helper()
	i.Create(t, o)
	t.Cleanup(func() {
		must.Do(t, client.IgnoreNotFound(i.Client.Delete(context.WithoutCancel(t.Context()), o)))
	})
}

// withEarlierTimes returns a configuration for a proxy of the API server that moves the creation and deletion times of all
// objects into the past.
func (i installation) withEarlierTimes(t *testing.T, by time.Duration) *rest.Config {
	t.Helper()

	upstream, err := url.Parse(i.Config.Host)
	must.Do(t, err)

	transport, err := rest.TransportFor(i.Config)
	must.Do(t, err)

	times := regexp.MustCompile(`("(?:creation|deletion)Timestamp": ?")([^"]+)"`)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(upstream)
			r.Out.Header.Del("Accept-Encoding") // the response must not be compressed
		},
		Transport: transport,
		ModifyResponse: func(r *http.Response) error {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}

			body = times.ReplaceAllFunc(body, func(found []byte) []byte {
				parts := times.FindSubmatch(found)

				at, err := time.Parse(time.RFC3339, string(parts[2]))
				if err != nil {
					return found
				}

				return fmt.Appendf(nil, `%s%s"`, parts[1], at.Add(-by).Format(time.RFC3339))
			})
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			r.Header.Set("Content-Length", strconv.Itoa(len(body)))

			return nil
		},
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)

	return &rest.Config{Host: server.URL}
}

// setConditions replaces the conditions in the status of an object.
func (i installation) setConditions(t *testing.T, o *unstructured.Unstructured, conditions ...metav1.Condition) {
	t.Helper()

	raw := make([]any, 0, len(conditions))
	for _, c := range conditions {
		raw = append(raw, map[string]any{
			"type": c.Type, "status": string(c.Status), "reason": c.Reason, "message": c.Message,
			"lastTransitionTime": c.LastTransitionTime.UTC().Format(time.RFC3339),
		})
	}

	must.Do(t, unstructured.SetNestedSlice(o.Object, raw, "status", "conditions"))
	must.Do(t, i.Client.Status().Update(t.Context(), o))
}

func newCondition(name string, status metav1.ConditionStatus, ago time.Duration, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: name, Status: status, LastTransitionTime: metav1.NewTime(time.Now().Add(-ago)), Reason: reason, Message: message,
	}
}

func (i installation) newLease(t *testing.T, name, holder string, ago time.Duration) *coordinationv1.Lease {
	t.Helper()

	out := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "hyperfleet-system"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15)), RenewTime: &metav1.MicroTime{Time: time.Now().Add(-ago)},
		},
	}
	i.create(t, out)

	return out
}

func (i installation) newHypervisor(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()

	o := newObject("HypervisorCluster", "", name, map[string]any{
		"provider": "proxmox", "endpoint": "https://pve.example:8006",
		"credentials": map[string]any{
			"tokenId":     map[string]any{"secretKeyRef": map[string]any{"name": "pve", "key": "id", "namespace": "default"}},
			"tokenSecret": map[string]any{"secretKeyRef": map[string]any{"name": "pve", "key": "token", "namespace": "default"}},
		},
	})
	i.create(t, o)

	return o
}

func (i installation) newJob(t *testing.T, namespace, name string, state v1alpha1.JobState) *unstructured.Unstructured {
	t.Helper()

	o := newObject("RunnerJob", namespace, name, map[string]any{
		"platform": "github-actions", "id": name, "state": string(state), "labels": []any{"linux"},
	})
	i.create(t, o)

	return o
}

const validObjects = `
ok        CRDs of runners: 7 installed, all match this version of hyperfleet
ok        operator of runners: not running, and not needed because the area has no objects
ok        CRDs of networking: 4 installed, all match this version of hyperfleet
ok        operator of networking: not running, and not needed because the area has no objects
ok        CRDs of hosts: 3 installed, all match this version of hyperfleet
ok        operator of hosts: not running, and not needed because the area has no objects
ok        CRDs of bridge: 1 installed, all match this version of hyperfleet
ok        operator of bridge: not running, and not needed because the area has no objects

0 problems, 0 warnings
`

const invalidObjects = `
ok        CRDs of networking: 4 installed, all match this version of hyperfleet
ok        operator of networking: not running, and not needed because the area has no objects
ok        CRDs of hosts: 3 installed, all match this version of hyperfleet
ok        operator of hosts: not running, and not needed because the area has no objects
ok        CRDs of bridge: 1 installed, all match this version of hyperfleet
ok        operator of bridge: not running, and not needed because the area has no objects
`

func (i installation) testNoProblems(t *testing.T) {
	i.expectOutput(t, 0, validObjects)

	i.newLease(t, "hyperfleet-runners", "one", time.Second)
	i.newLease(t, "hyperfleet-sentinel", "another program", time.Hour)

	cluster := i.newHypervisor(t, "pve")
	i.setConditions(t, cluster, newCondition("Ready", metav1.ConditionTrue, time.Hour, "Connected", "Proxmox VE 9.0, 3 nodes online"))
	i.expectOutput(t, 0, `
ok        CRDs of runners: 7 installed, all match this version of hyperfleet
ok        operator of runners: one is the leader
ok        RBAC roles of runners: all match this version of hyperfleet
`+strings.TrimPrefix(invalidObjects, "\n")+`
0 problems, 0 warnings
`)
}

func (i installation) testObjects(t *testing.T) {
	namespace := i.Namespace(t)

	i.newLease(t, "hyperfleet-runners", "one", time.Second)

	refused := i.newHypervisor(t, "refused")
	i.setConditions(t, refused,
		newCondition("Ready", metav1.ConditionFalse, 12*time.Minute, "PermissionDenied", "as below"),
		newCondition("Stalled", metav1.ConditionTrue, 12*time.Minute, "PermissionDenied",
			"check the privileges on pve.example: ci@pve!hyperfleet lacks VM.Allocate on /vms:\n\x1b[31mpveum acl modify /vms"))

	trusting := i.newHypervisor(t, "trusting")
	i.setConditions(t, trusting,
		newCondition("Ready", metav1.ConditionTrue, time.Hour, "Connected", ""),
		newCondition("InsecureTLS", metav1.ConditionTrue, 3*time.Hour, "AsConfigured", "spec.tls.insecureSkipVerify"))

	i.setConditions(t, i.newHypervisor(t, "mistyped"),
		newCondition("Ready", metav1.ConditionTrue, time.Hour, "Ready", ""),
		newCondition("Connected", metav1.ConditionTrue, time.Hour, "ConnectedWithWarnings", "pve.example has no node pve33"))
	i.setConditions(t, i.newHypervisor(t, "slow"), newCondition("Ready", metav1.ConditionFalse, 20*time.Minute, "Unreachable", "pve.example does not answer"))
	i.setConditions(t, i.newHypervisor(t, "soon"), newCondition("Ready", metav1.ConditionFalse, 8*time.Minute, "Unreachable", "pve.example does not answer"))

	i.setConditions(t, i.newJob(t, namespace, "waits", v1alpha1.JobQueued),
		newCondition("Ready", metav1.ConditionFalse, 30*time.Minute, "NoPool", "no pool has the labels [linux]"))

	for _, state := range []v1alpha1.JobState{v1alpha1.JobCompleted, v1alpha1.JobRunning, v1alpha1.JobWaiting} {
		i.setConditions(t, i.newJob(t, namespace, strings.ToLower(string(state)), state), newCondition("Ready", metav1.ConditionFalse, 30*time.Minute, "Over", "it is over"))
	}

	deaf := newObject("RunnerPool", namespace, "deaf", map[string]any{
		"templateRef": map[string]any{"name": "linux"},
		"workload":    map[string]any{"type": "github-actions", "config": map[string]any{"github": map[string]any{"organization": "o"}}},
	})
	i.create(t, deaf)
	i.setConditions(t, deaf,
		newCondition("Ready", metav1.ConditionTrue, time.Hour, "AsDesired", ""),
		newCondition("DemandSourcesReady", metav1.ConditionFalse, 59*time.Minute, "RepositoriesMissing", "the operator receives no jobs"))

	// Objects without conditions are never overdue.
	i.create(t, newObject("RunnerLog", namespace, "log", map[string]any{"text": "done", "claim": "one"}))

	i.expectOutput(t, 1, `
ok        CRDs of runners: 7 installed, all match this version of hyperfleet
ok        operator of runners: one is the leader
ok        RBAC roles of runners: all match this version of hyperfleet
`+strings.TrimPrefix(invalidObjects, "\n")+`warning   HypervisorCluster mistyped: Connected, for 60m
            ConnectedWithWarnings: pve.example has no node pve33
problem   HypervisorCluster refused: PermissionDenied, for 12m
            check the privileges on pve.example: ci@pve!hyperfleet lacks VM.Allocate on /vms: pveum acl modify /vms
problem   HypervisorCluster slow: Unreachable, for 20m
            pve.example does not answer
warning   HypervisorCluster trusting: InsecureTLS, for 3h
            AsConfigured: spec.tls.insecureSkipVerify
problem   RunnerJob `+namespace+`/waits: NoPool, for 30m
            no pool has the labels [linux]
warning   RunnerPool `+namespace+`/deaf: DemandSourcesReady, for 59m
            RepositoriesMissing: the operator receives no jobs

3 problems, 3 warnings
`)

	report := i.runDoctor(t, i.Config, "-n", "default", "--waiting", "5m")
	want := []string{
		"warning HypervisorCluster mistyped Connected",
		"problem HypervisorCluster refused PermissionDenied", "problem HypervisorCluster slow Unreachable",
		"problem HypervisorCluster soon Unreachable", "warning HypervisorCluster trusting InsecureTLS",
	}
	if !slices.Equal(objectFindings(report), want) || report.Problems != 3 || report.Warnings != 2 || report.Objects["HypervisorCluster"] != 5 ||
		report.Objects["RunnerJob"] != 0 || !strings.HasPrefix(report.APIServer, "v1.") {
		t.Errorf("the report in JSON: %+v", report)
	}
}

// testStuckObjects checks the findings about objects whose deletion does not end, and objects that no operator reconciles.
func (i installation) testStuckObjects(t *testing.T) {
	i.newLease(t, "hyperfleet-runners", "one", time.Second)
	i.newHypervisor(t, "new")

	kept := i.newHypervisor(t, "kept")
	kept.SetFinalizers([]string{"example.com/kept"})
	must.Do(t, i.Client.Update(t.Context(), kept))
	must.Do(t, i.Client.Delete(t.Context(), kept))
	t.Cleanup(func() {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		must.Do(t, i.Client.Patch(context.WithoutCancel(t.Context()), kept, patch))
	})

	// The CRD's schema has a default condition with the Unix epoch as its time. Its age counts from the creation.
	given := &bridgev1.DPFHCPBridge{}
	(&seeder{t: t}).sample("dpfhcpbridge-production.yaml", given)
	given.Namespace = i.Namespace(t)
	i.create(t, given)

	const bridge, gone, unseen = "problem DPFHCPBridge prod-cluster NotReconciled", "problem HypervisorCluster kept Deleting",
		"problem HypervisorCluster new NotReconciled"

	for _, tc := range []struct {
		later time.Duration
		want  []string
	}{
		{0, []string{bridge}},
		{2 * time.Minute, []string{unseen, bridge}},
		{time.Hour, []string{gone, unseen, bridge}},
	} {
		report := i.runDoctor(t, i.withEarlierTimes(t, tc.later))
		if got := objectFindings(report); !slices.Equal(got, tc.want) {
			t.Errorf("after %s: %q, want %q", tc.later, got, tc.want)
		}

		for _, f := range report.Findings {
			if f.Kind == "DPFHCPBridge" && time.Duration(*f.ForSeconds)*time.Second > tc.later+5*time.Minute {
				t.Errorf("after %s: it is so for %.0f s", tc.later, *f.ForSeconds)
			}
		}
	}
}

func (i installation) testOperators(t *testing.T) {
	i.newHypervisor(t, "pve")

	finding := func(subject string) string {
		t.Helper()

		return findingsOf(i.runDoctor(t, i.Config), subject)
	}

	const runners = "operator of runners"

	if got, want := finding(runners), "problem not running: no operator has ever run the area in namespace hyperfleet-system (--operator-namespace), and the area has "+
		"1 object: run `kubectl apply --server-side -f hyperfleet.yaml` with the file of the release, or install its chart hyperfleet with "+
		"areas.runners.enabled"; got != want {
		t.Errorf("%s, want %s", got, want)
	}

	// The Deployment exists, but its image cannot be pulled.
	pods := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "hyperfleet-system", Name: "hyperfleet-runners"}}
	pods.Spec.Replicas = new(int32(2))
	pods.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	pods.Spec.Template.Labels = pods.Spec.Selector.MatchLabels
	pods.Spec.Template.Spec.Containers = []corev1.Container{{Name: "operator", Image: "hyperfleet"}}
	i.create(t, pods)

	if got, want := finding(runners), "problem not running: Deployment hyperfleet-system/hyperfleet-runners has 0 of 2 pods ready: to find out why, "+
		"run `kubectl describe pods -n hyperfleet-system -l app.kubernetes.io/name=hyperfleet-runners`"; got != want {
		t.Errorf("%s, want %s", got, want)
	}

	// Operators that divide the namespaces have Deployments with other names.
	shard := pods.DeepCopy()
	shard.ResourceVersion, shard.Name = "", "hyperfleet-runners-a"
	i.create(t, shard)

	pods.Status.Replicas, pods.Status.ReadyReplicas = 1, 1
	must.Do(t, i.Client.Status().Update(t.Context(), pods))

	if got, want := finding(runners), "problem not running: Deployment hyperfleet-system/hyperfleet-runners-a has 0 of 2 pods ready: "; !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}

	must.Do(t, i.Client.Delete(t.Context(), shard))

	if got := finding(runners); !strings.HasPrefix(got, "problem not running: no operator has ever run the area") {
		t.Errorf("%s, though a pod is ready", got)
	}

	alone := i.newLease(t, "hyperfleet-runners", "one", 20*time.Minute)

	if got, want := finding(runners), "problem not running: one last renewed Lease hyperfleet-system/hyperfleet-runners 20m ago; "; !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}

	i.newLease(t, "hyperfleet-bridge-hosts-networking-runners", "two", time.Second)

	if got := finding(runners); got != "ok two is the leader" {
		t.Error(got)
	}

	if got := finding("operator of bridge"); got != "ok two is the leader" {
		t.Error(got)
	}

	alone.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	must.Do(t, i.Client.Update(t.Context(), alone))

	if got, want := finding(runners), "problem two operators run the area, two with Lease hyperfleet-system/hyperfleet-bridge-hosts-networking-runners and "+
		"one with Lease hyperfleet-system/hyperfleet-runners: remove the area from the controllers of one of them"; got != want {
		t.Errorf("%s, want %s", got, want)
	}

	if got := finding("operator of hosts"); got != "ok two is the leader" {
		t.Error(got)
	}
}

func (i installation) testCRDsAndRoles(t *testing.T) {
	i.newLease(t, "hyperfleet-runners", "one", time.Second)

	crds := &apiextensionsv1.CustomResourceDefinitionList{}
	must.Do(t, i.Client.List(t.Context(), crds))

	byName := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for i := range crds.Items {
		byName[crds.Items[i].Name] = &crds.Items[i]
	}

	remove := func(o client.Object) {
		must.Do(t, i.Client.Delete(t.Context(), o))

		for !apierrors.IsNotFound(i.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o)) {
			time.Sleep(20 * time.Millisecond)
		}
	}

	defer func() { i.Apply(t, "../../deploy/crds", "../../deploy/rbac") }()

	remove(byName["dpfhcpbridges.dpf.hcp.bridge.com"])
	remove(byName["hostfleets.infrastructure.hyperfleet.io"])

	other := byName["runnerpools.hyperfleet.io"]
	other.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "of another version"
	must.Do(t, i.Client.Update(t.Context(), other))

	older := byName["kubevirtnodepools.infrastructure.hyperfleet.io"]
	delete(older.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties, "observedGeneration")
	must.Do(t, i.Client.Update(t.Context(), older))

	remove(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "hyperfleet-runners", Namespace: "hyperfleet-system"}})

	wider := &rbacv1.ClusterRole{}
	must.Do(t, i.Client.Get(t.Context(), client.ObjectKey{Name: "hyperfleet-runners"}, wider))

	wider.Rules = wider.Rules[1:]
	must.Do(t, i.Client.Update(t.Context(), wider))

	const fixCRDs = "run `kubectl apply --server-side -f hyperfleet-crds.yaml` with the file of the release, " +
		"or install its chart hyperfleet-crds"

	want := `
warning   CRDs of runners: runnerpools.hyperfleet.io differ from the CRDs of this program (see hyperfleet version): use the same version of hyperfleet as the operator, or ` + fixCRDs + `
ok        operator of runners: one is the leader
problem   RBAC roles of runners: Role hyperfleet-system/hyperfleet-runners is missing: run ` + "`kubectl apply --server-side -f hyperfleet.yaml`" + ` with the file of the release, or install its chart hyperfleet with areas.runners.enabled
problem   CRDs of networking: kubevirtnodepools.infrastructure.hyperfleet.io lacks status.observedGeneration: an operator of this version does not start the area: ` + fixCRDs + `
ok        operator of networking: not running, and not needed because the area has no objects
problem   CRDs of hosts: hostfleets.infrastructure.hyperfleet.io missing: ` + fixCRDs + `
ok        operator of hosts: not running, and not needed because the area has no objects
warning   CRDs of bridge: none is installed, so the area is disabled: to enable the area, ` + fixCRDs + `

3 problems, 2 warnings
`
	i.expectOutput(t, 1, want)

	i.Apply(t, "../../deploy/rbac")
	must.Do(t, i.Client.Get(t.Context(), client.ObjectKey{Name: "hyperfleet-runners"}, wider))

	wider.Rules = wider.Rules[1:]
	must.Do(t, i.Client.Update(t.Context(), wider))

	checkContains(t, findingsOf(i.runDoctor(t, i.Config), "RBAC roles of runners"),
		"warning ClusterRole hyperfleet-runners: the rules differ from those of this program (see hyperfleet version): ")
}

// testForbidden checks that doctor reports what it has no permission to read.
func (i installation) testForbidden(t *testing.T) {
	execute(t, i.User(t, "visitor"), "doctor", "-o", "yaml").expectSuccess(t, "apiServer: v1.", "\nwarnings: 8\n")
	execute(t, i.User(t, "visitor"), "doctor").expectSuccess(t,
		"warning   operators: no permission to read: leases.coordination.k8s.io is forbidden", "warning   CRDs: no permission to read: customresourcedefinitions",
		"warning   objects of runners: no permission to list hypervisorclusters, hypervisormachinetemplates, machineclaims, runnerjobbatches, "+
			"runnerjobs, runnerlogs, runnerpools\n", "0 problems, 8 warnings")
}

func (i installation) testCommandLine(t *testing.T) {
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"now"}, 2, "doctor: the command takes no arguments"},
		{[]string{"--try", "linux", "-o", "yaml"}, 2, "doctor: --try cannot ask for confirmation with --output yaml: add --yes"},
		{[]string{"--waiting", "0s"}, 2, "doctor: --waiting 0s: give a duration above 0, such as 10m0s"},
		{[]string{"--nothing"}, 2, "unknown flag: --nothing"},
		{[]string{"--context", "none"}, 1, "doctor: find the API server"},
	} {
		execute(t, i.Config, append([]string{"doctor"}, tc.args...)...).expectFailure(t, tc.code, tc.want)
	}

	nowhere := rest.CopyConfig(i.Config)
	nowhere.Host = "https://127.0.0.1:1"

	execute(t, nowhere, "doctor").expectFailure(t, cli.ExitFailed, "get the version of the API server at https://127.0.0.1:1")
}
