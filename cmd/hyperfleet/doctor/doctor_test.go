// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
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

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	os.Exit(kube.Run(m, func(e *kube.Env) { env = e },
		kube.WithCRDs("../../../deploy/crds", "../../../deploy/base/namespace.yaml", "../../../deploy/rbac"),
		kube.WithScheme(v1alpha1.AddToScheme)))
}

// execute runs the command as a user would.
func execute(t *testing.T, as *rest.Config, args ...string) (string, error) {
	t.Helper()

	var out bytes.Buffer

	cmd := New()
	cmd.SetArgs(append(args, "--kubeconfig", env.Kubeconfig(t, as)))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true

	err := cmd.ExecuteContext(t.Context())

	return out.String(), err
}

// expect runs it as an administrator, and compares the whole of what it prints.
func expect(t *testing.T, code int, want string) {
	t.Helper()

	got, err := execute(t, env.Config)
	if exit := cli.ExitCode(err); exit != code {
		t.Errorf("it ended with %d (%v), want %d", exit, err, code)
	}

	// The version is the API server's own, and clocks run on.
	_, got, _ = strings.Cut(got, "\n")
	if want = strings.TrimPrefix(want, "\n"); got != want {
		t.Errorf("it printed:\n%s\nwant:\n%s", got, want)
	}
}

func object(kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "hyperfleet.io", Version: "v1alpha1", Kind: kind})
	o.SetNamespace(namespace)
	o.SetName(name)

	return o
}

func must(t *testing.T, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}

// create makes an object that is gone when the test is over.
func create(t *testing.T, o client.Object) {
	t.Helper()
	must(t, env.Client.Create(t.Context(), o))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		must(t, client.IgnoreNotFound(env.Client.Delete(ctx, o)))
	})
}

// say writes conditions: type, status, since when, reason, message.
func say(t *testing.T, o *unstructured.Unstructured, conditions ...metav1.Condition) {
	t.Helper()

	raw := make([]any, 0, len(conditions))
	for _, c := range conditions {
		raw = append(raw, map[string]any{
			"type": c.Type, "status": string(c.Status), "reason": c.Reason, "message": c.Message,
			"lastTransitionTime": c.LastTransitionTime.UTC().Format(time.RFC3339),
		})
	}

	must(t, unstructured.SetNestedSlice(o.Object, raw, "status", "conditions"))
	must(t, env.Client.Status().Update(t.Context(), o))
}

func condition(name string, status metav1.ConditionStatus, ago time.Duration, reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: name, Status: status, LastTransitionTime: metav1.NewTime(time.Now().Add(-ago)), Reason: reason, Message: message,
	}
}

func lease(t *testing.T, name, holder string, ago time.Duration) *coordinationv1.Lease {
	t.Helper()

	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "hyperfleet-system"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15)), RenewTime: &metav1.MicroTime{Time: time.Now().Add(-ago)},
		},
	}
	create(t, lease)

	return lease
}

func hypervisor(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()

	o := object("HypervisorCluster", "", name, map[string]any{
		"provider": "proxmox", "endpoint": "https://pve.example:8006",
		"credentials": map[string]any{
			"tokenId":     map[string]any{"secretKeyRef": map[string]any{"name": "pve", "key": "id", "namespace": "default"}},
			"tokenSecret": map[string]any{"secretKeyRef": map[string]any{"name": "pve", "key": "token", "namespace": "default"}},
		},
	})
	create(t, o)

	return o
}

func queued(t *testing.T, namespace, name string, state v1alpha1.JobState) *unstructured.Unstructured {
	t.Helper()

	o := object("RunnerJob", namespace, name, map[string]any{
		"platform": "github-actions", "id": name, "state": string(state), "labels": []any{"linux"},
	})
	create(t, o)

	return o
}

const fine = `
ok        kinds of runners: 7 installed, as this program knows them
ok        operator of runners: none, and there is nothing for it to do
ok        kinds of networking: 4 installed, as this program knows them
ok        operator of networking: none, and there is nothing for it to do
ok        kinds of hosts: 3 installed, as this program knows them
ok        operator of hosts: none, and there is nothing for it to do
ok        kinds of bridge: 1 installed, as this program knows them
ok        operator of bridge: none, and there is nothing for it to do

0 problems, 0 warnings
`

const others = `
ok        kinds of networking: 4 installed, as this program knows them
ok        operator of networking: none, and there is nothing for it to do
ok        kinds of hosts: 3 installed, as this program knows them
ok        operator of hosts: none, and there is nothing for it to do
ok        kinds of bridge: 1 installed, as this program knows them
ok        operator of bridge: none, and there is nothing for it to do
`

func TestNothingIsWrong(t *testing.T) { //nolint:paralleltest // it speaks of the whole API server, as all here
	expect(t, 0, fine)

	lease(t, "hyperfleet-runners", "one", time.Second)
	lease(t, "hyperfleet-sentinel", "another program", time.Hour)

	cluster := hypervisor(t, "pve")
	say(t, cluster, condition("Ready", metav1.ConditionTrue, time.Hour, "Connected", "Proxmox VE 9.0, 3 nodes online"))
	expect(t, 0, `
ok        kinds of runners: 7 installed, as this program knows them
ok        operator of runners: one runs it
ok        roles of runners: as this program has them
`+strings.TrimPrefix(others, "\n")+`
0 problems, 0 warnings
`)
}

func TestObjects(t *testing.T) { //nolint:paralleltest // see above
	namespace := env.Namespace(t)

	lease(t, "hyperfleet-runners", "one", time.Second)

	refused := hypervisor(t, "refused")
	say(t, refused,
		condition("Ready", metav1.ConditionFalse, 12*time.Minute, "PermissionDenied", "as below"),
		condition("Stalled", metav1.ConditionTrue, 12*time.Minute, "PermissionDenied",
			"check the privileges on pve.example: ci@pve!hyperfleet lacks VM.Allocate on /vms:\n\x1b[31mpveum acl modify /vms"))

	trusting := hypervisor(t, "trusting")
	say(t, trusting,
		condition("Ready", metav1.ConditionTrue, time.Hour, "Connected", ""),
		condition("InsecureTLS", metav1.ConditionTrue, 3*time.Hour, "AsConfigured", "spec.tls.insecureSkipVerify"))

	say(t, hypervisor(t, "slow"), condition("Ready", metav1.ConditionFalse, 20*time.Minute, "Unreachable", "pve.example does not answer"))
	say(t, hypervisor(t, "soon"), condition("Ready", metav1.ConditionFalse, 8*time.Minute, "Unreachable", "pve.example does not answer"))

	say(t, queued(t, namespace, "waits", v1alpha1.JobQueued),
		condition("Ready", metav1.ConditionFalse, 30*time.Minute, "NoPool", "no pool has the labels [linux]"))

	for _, state := range []v1alpha1.JobState{v1alpha1.JobCompleted, v1alpha1.JobRunning, v1alpha1.JobWaiting} {
		say(t, queued(t, namespace, strings.ToLower(string(state)), state), condition("Ready", metav1.ConditionFalse, 30*time.Minute, "Over", "it is over"))
	}

	deaf := object("RunnerPool", namespace, "deaf", map[string]any{
		"templateRef": map[string]any{"name": "linux"},
		"workload":    map[string]any{"type": "github-actions", "config": map[string]any{"github": map[string]any{"organization": "o"}}},
	})
	create(t, deaf)
	say(t, deaf,
		condition("Ready", metav1.ConditionTrue, time.Hour, "AsDesired", ""),
		condition("DemandSourcesReady", metav1.ConditionFalse, 59*time.Minute, "RepositoriesMissing", "no job is heard of"))

	// Kinds without conditions are never late.
	create(t, object("RunnerLog", namespace, "log", map[string]any{"text": "done", "claim": "one"}))

	expect(t, 1, `
ok        kinds of runners: 7 installed, as this program knows them
ok        operator of runners: one runs it
ok        roles of runners: as this program has them
`+strings.TrimPrefix(others, "\n")+`problem   HypervisorCluster refused: PermissionDenied, for 12m
            check the privileges on pve.example: ci@pve!hyperfleet lacks VM.Allocate on /vms: pveum acl modify /vms
problem   HypervisorCluster slow: Unreachable, for 20m
            pve.example does not answer
warning   HypervisorCluster trusting: InsecureTLS, for 3h
            AsConfigured: spec.tls.insecureSkipVerify
problem   RunnerJob `+namespace+`/waits: NoPool, for 30m
            no pool has the labels [linux]
warning   RunnerPool `+namespace+`/deaf: DemandSourcesReady, for 59m
            RepositoriesMissing: no job is heard of

3 problems, 2 warnings
`)

	out, err := execute(t, env.Config, "-n", "default", "--waiting", "5m", "--output", "json")
	if cli.ExitCode(err) != 1 {
		t.Errorf("it ended with %v", err)
	}

	var report Report

	must(t, json.Unmarshal([]byte(out), &report))

	var named []string

	for _, f := range report.Findings {
		if f.Kind != "" {
			named = append(named, fmt.Sprintf("%s %s %s %s", f.Level, f.Kind, f.Name, f.Reason))
		}
	}

	want := []string{
		"problem HypervisorCluster refused PermissionDenied", "problem HypervisorCluster slow Unreachable",
		"problem HypervisorCluster soon Unreachable", "warning HypervisorCluster trusting InsecureTLS",
	}
	if !slices.Equal(named, want) || report.Problems != 3 || report.Warnings != 1 || report.Objects["HypervisorCluster"] != 4 ||
		report.Objects["RunnerJob"] != 0 || !strings.HasPrefix(report.APIServer, "v1.") {
		t.Errorf("the report in JSON:\n%s", out)
	}
}

// What is deleted and stays, and what nobody looks at, once that is so for long.
func TestNobodyLooks(t *testing.T) { //nolint:paralleltest // see above
	lease(t, "hyperfleet-runners", "one", time.Second)
	hypervisor(t, "new")

	kept := hypervisor(t, "kept")
	kept.SetFinalizers([]string{"example.com/kept"})
	must(t, env.Client.Update(t.Context(), kept))
	must(t, env.Client.Delete(t.Context(), kept))
	t.Cleanup(func() {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		must(t, env.Client.Patch(context.WithoutCancel(t.Context()), kept, patch))
	})

	// A condition that the schema gives, as that of a new DPFHCPBridge, counts from the object's time.
	d := &doctor{now: time.Now(), waiting: defaultWaiting}
	given := object("HypervisorCluster", "", "given", nil)
	given.SetCreationTimestamp(metav1.NewTime(d.now.Add(-time.Hour)))
	must(t, unstructured.SetNestedSlice(given.Object, []any{map[string]any{
		"type": "Ready", "status": "Unknown", "reason": "NotLookedAt", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z",
	}}, "status", "conditions"))

	if f, ails := d.object(given, true); !ails || int(*f.ForSeconds) != 3600 {
		t.Errorf("%v %+v, want one of an hour", ails, f)
	}

	for _, tc := range []struct {
		later time.Duration
		want  []string
	}{
		{0, nil},
		{2 * time.Minute, []string{"problem new NotSeen"}},
		{time.Hour, []string{"problem kept Deleting", "problem new NotSeen"}},
	} {
		d := &doctor{client: env.Client, now: time.Now().Add(tc.later), operator: "hyperfleet-system", waiting: defaultWaiting}
		must(t, d.look(t.Context()))

		var got []string

		for _, f := range d.report.Findings {
			if f.Kind != "" {
				got = append(got, fmt.Sprintf("%s %s %s", f.Level, f.Name, f.Reason))
			}
		}

		if !slices.Equal(got, tc.want) {
			t.Errorf("after %s: %q, want %q", tc.later, got, tc.want)
		}
	}
}

func TestOperators(t *testing.T) { //nolint:paralleltest // see above
	hypervisor(t, "pve")

	finding := func(subject string) string {
		t.Helper()

		d := &doctor{client: env.Client, now: time.Now(), operator: "hyperfleet-system", waiting: defaultWaiting}
		must(t, d.look(t.Context()))

		for _, f := range d.report.Findings {
			if f.Subject == subject {
				return string(f.Level) + " " + f.Message
			}
		}

		t.Fatalf("nothing is said of %s", subject)

		return ""
	}

	const runners = "operator of runners"

	if got, want := finding(runners), "problem none has ever run it in namespace hyperfleet-system (--operator-namespace), and it has 1 object "+
		"to look after: kubectl apply --server-side -f hyperfleet.yaml of the release, or its chart hyperfleet with areas.runners.enabled"; got != want {
		t.Errorf("%s, want %s", got, want)
	}

	// It is installed, and its image can't be had.
	pods := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "hyperfleet-system", Name: "hyperfleet-runners"}}
	pods.Spec.Replicas = new(int32(2))
	pods.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	pods.Spec.Template.Labels = pods.Spec.Selector.MatchLabels
	pods.Spec.Template.Spec.Containers = []corev1.Container{{Name: "operator", Image: "hyperfleet"}}
	create(t, pods)

	if got, want := finding(runners), "problem none runs it: Deployment hyperfleet-system/hyperfleet-runners has 0 of 2 pods ready: "+
		"kubectl describe pods -n hyperfleet-system -l app.kubernetes.io/name=hyperfleet-runners"; got != want {
		t.Errorf("%s, want %s", got, want)
	}

	pods.Status.Replicas, pods.Status.ReadyReplicas = 1, 1
	must(t, env.Client.Status().Update(t.Context(), pods))

	if got := finding(runners); !strings.HasPrefix(got, "problem none has ever run it") {
		t.Errorf("%s, though a pod is ready", got)
	}

	alone := lease(t, "hyperfleet-runners", "one", 20*time.Minute)

	if got, want := finding(runners), "problem none runs it: one renewed the Lease hyperfleet-system/hyperfleet-runners last 20m ago; "; !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}

	lease(t, "hyperfleet-bridge-hosts-networking-runners", "two", time.Second)

	if got := finding(runners); got != "ok two runs it" {
		t.Error(got)
	}

	if got := finding("operator of bridge"); got != "ok two runs it" {
		t.Error(got)
	}

	alone.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	must(t, env.Client.Update(t.Context(), alone))

	if got, want := finding(runners), "problem two run it, two with the Lease hyperfleet-system/hyperfleet-bridge-hosts-networking-runners and "+
		"one with the Lease hyperfleet-system/hyperfleet-runners: leave the area out of the controllers of one of them"; got != want {
		t.Errorf("%s, want %s", got, want)
	}

	if got := finding("operator of hosts"); got != "ok two runs it" {
		t.Error(got)
	}
}

func TestInstalled(t *testing.T) { //nolint:paralleltest // see above
	lease(t, "hyperfleet-runners", "one", time.Second)

	crds := &apiextensionsv1.CustomResourceDefinitionList{}
	must(t, env.Client.List(t.Context(), crds))

	byName := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for i := range crds.Items {
		byName[crds.Items[i].Name] = &crds.Items[i]
	}

	remove := func(o client.Object) {
		must(t, env.Client.Delete(t.Context(), o))

		for !apierrors.IsNotFound(env.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o)) {
			if t.Context().Err() != nil {
				t.Fatalf("%s does not go", o.GetName())
			}
		}
	}

	defer func() { env.Apply(t, "../../../deploy/crds", "../../../deploy/rbac") }()

	remove(byName["dpfhcpbridges.dpf.hcp.bridge.com"])
	remove(byName["hostfleets.infrastructure.hyperfleet.io"])

	other := byName["runnerpools.hyperfleet.io"]
	other.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "of another version"
	must(t, env.Client.Update(t.Context(), other))

	remove(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "hyperfleet-runners", Namespace: "hyperfleet-system"}})

	wider := &rbacv1.ClusterRole{}
	must(t, env.Client.Get(t.Context(), client.ObjectKey{Name: "hyperfleet-runners"}, wider))

	wider.Rules = wider.Rules[1:]
	must(t, env.Client.Update(t.Context(), wider))

	want := `
warning   kinds of runners: installed in another form than this program (hyperfleet version) knows: runnerpools.hyperfleet.io: run the operator's own version of it, or kubectl apply --server-side -f hyperfleet-crds.yaml of the release, or its chart hyperfleet-crds
ok        operator of runners: one runs it
problem   roles of runners: Role hyperfleet-system/hyperfleet-runners is missing: kubectl apply --server-side -f hyperfleet.yaml of the release, or its chart hyperfleet with areas.runners.enabled
ok        kinds of networking: 4 installed, as this program knows them
ok        operator of networking: none, and there is nothing for it to do
problem   kinds of hosts: hostfleets.infrastructure.hyperfleet.io missing: kubectl apply --server-side -f hyperfleet-crds.yaml of the release, or its chart hyperfleet-crds
ok        operator of hosts: none, and there is nothing for it to do
warning   kinds of bridge: none is installed, and the area is off: if it is wanted, kubectl apply --server-side -f hyperfleet-crds.yaml of the release, or its chart hyperfleet-crds

2 problems, 2 warnings
`
	expect(t, 1, want)

	env.Apply(t, "../../../deploy/rbac")
	must(t, env.Client.Get(t.Context(), client.ObjectKey{Name: "hyperfleet-runners"}, wider))

	wider.Rules = wider.Rules[1:]
	must(t, env.Client.Update(t.Context(), wider))

	out, _ := execute(t, env.Config)
	if line := "warning   roles of runners: other than this program (hyperfleet version) has them: ClusterRole hyperfleet-runners: "; !strings.Contains(out, line) {
		t.Errorf("it printed:\n%s\nwithout %s", out, line)
	}
}

// Who may see little is told what was not looked at.
func TestForbidden(t *testing.T) { //nolint:paralleltest // see above
	out, err := execute(t, env.User(t, "visitor"))
	if err != nil {
		t.Errorf("it ended with %v", err)
	}

	for _, want := range []string{
		"warning   operators: you may not look: leases.coordination.k8s.io is forbidden", "warning   kinds: you may not look: customresourcedefinitions",
		"warning   objects of runners: you may not list hypervisorclusters, hypervisormachinetemplates, machineclaims, runnerjobbatches, " +
			"runnerjobs, runnerlogs, runnerpools\n", "0 problems, 8 warnings",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}

func TestCommandLine(t *testing.T) { //nolint:paralleltest // see above
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"now"}, 2, "doctor: it takes no argument"},
		{[]string{"--output", "xml"}, 2, `doctor: unknown output "xml": use table or json`},
		{[]string{"--waiting", "0s"}, 2, "doctor: --waiting 0s: give a time above 0, such as 10m0s"},
		{[]string{"--nothing"}, 2, "unknown flag: --nothing"},
		{[]string{"--context", "none"}, 1, "doctor: find the API server"},
	} {
		_, err := execute(t, env.Config, tc.args...)
		if code := cli.ExitCode(err); code != tc.code || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %d, %v; want %d, %s", tc.args, code, err, tc.code, tc.want)
		}
	}

	nowhere := rest.CopyConfig(env.Config)
	nowhere.Host = "https://127.0.0.1:1"

	if _, err := execute(t, nowhere); cli.ExitCode(err) != 1 || !strings.Contains(err.Error(), "ask the API server at https://127.0.0.1:1 for its version") {
		t.Errorf("no API server: %v", err)
	}
}

// Each kind that there is belongs to an area, whose manifests are there.
func TestKnown(t *testing.T) {
	t.Parallel()

	kinds, err := known()
	must(t, err)

	total := 0

	for area, want := range map[string]int{"runners": 7, "networking": 4, "hosts": 3, "bridge": 1} {
		if len(kinds[area]) != want {
			t.Errorf("%s has %d kinds, want %d", area, len(kinds[area]), want)
		}

		total += len(kinds[area])
	}

	if files, err := os.ReadDir("../../../deploy/crds"); err != nil || total != len(files)-1 {
		t.Errorf("%d kinds of %d files, %v", total, len(files)-1, err)
	}
}
