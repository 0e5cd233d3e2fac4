// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ocm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/sim/ocm"
	"github.com/hyperfleet/hyperfleet/sim/ocm/crds"
	"github.com/hyperfleet/hyperfleet/sim/ocm/ocmtest"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const patience = time.Minute

var env *kube.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())

	kube.Main(m, func(e *kube.Env) {
		env = e

		for _, install := range []error{
			crds.InstallHub(context.Background(), e.Config), crds.InstallSpoke(context.Background(), e.Config),
		} {
			if install != nil {
				fmt.Fprintln(os.Stderr, install)
				os.Exit(1)
			}
		}
	}, kube.WithControllerManager())
}

// world is a cluster, whose objects are in a namespace of their own.
type world struct {
	*testing.T

	agent         *ocm.Agent
	cluster, home string
}

func newWorld(t *testing.T) *world {
	t.Helper()

	w := &world{T: t, cluster: env.Namespace(t), home: env.Namespace(t)}
	w.agent = ocmtest.New(t, ocm.Options{Hub: env.Config, Cluster: w.cluster, Interval: 100 * time.Millisecond})

	return w
}

func object(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name, "namespace": namespace}}}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)

	return o
}

func (w *world) configMap(name, value string) map[string]any {
	o := object("v1", "ConfigMap", w.home, name)
	o.Object["data"] = map[string]any{"a": value}

	return o.Object
}

func (w *world) work(name string, manifests ...any) *unstructured.Unstructured {
	o := object("work.open-cluster-management.io/v1", "ManifestWork", w.cluster, name)
	o.Object["spec"] = map[string]any{"workload": map[string]any{"manifests": manifests}}

	return o
}

func (w *world) create(o *unstructured.Unstructured) {
	w.Helper()

	if err := env.Client.Create(w.Context(), o); err != nil {
		w.Fatal(err)
	}
}

func (w *world) patch(o *unstructured.Unstructured, document map[string]any) {
	w.Helper()

	data, err := json.Marshal(document)
	if err != nil {
		w.Fatal(err)
	}

	if err := env.Client.Patch(w.Context(), o.DeepCopy(), client.RawPatch(types.MergePatchType, data)); err != nil {
		w.Fatal(err)
	}
}

// get reads an object; nil is none.
func (w *world) get(o *unstructured.Unstructured) *unstructured.Unstructured {
	w.Helper()

	got := o.DeepCopy()
	if err := env.Client.Get(w.Context(), client.ObjectKeyFromObject(o), got); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		w.Fatal(err)
	}

	return got
}

func (w *world) eventually(what string, ok func() bool) {
	w.Helper()

	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("never: %s; problems %v", what, w.agent.Problems())
		}
	}
}

// condition is TYPE=STATUS REASON of a work, or of one of its manifests.
func condition(conditions []any, kind string) string {
	for _, item := range conditions {
		c, _ := item.(map[string]any)
		if c["type"] == kind {
			return fmt.Sprintf("%s %s", c["status"], c["reason"])
		}
	}

	return ""
}

func ofWork(work *unstructured.Unstructured, kind string) string {
	conditions, _, _ := unstructured.NestedSlice(work.Object, "status", "conditions")

	return condition(conditions, kind)
}

func ofManifest(work *unstructured.Unstructured, index int) map[string]any {
	manifests, _, _ := unstructured.NestedSlice(work.Object, "status", "resourceStatus", "manifests")
	if index >= len(manifests) {
		return nil
	}

	m, _ := manifests[index].(map[string]any)

	return m
}

func TestWorkFromBeginToEnd(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	work := w.work("app", w.configMap("one", "1"), w.configMap("two", "2"))
	work.Object["spec"].(map[string]any)["manifestConfigs"] = []any{map[string]any{
		"resourceIdentifier": map[string]any{"resource": "configmaps", "namespace": w.home, "name": "one"},
		"feedbackRules": []any{map[string]any{"type": "JSONPaths", "jsonPaths": []any{
			map[string]any{"name": "value", "path": ".data.a"},
		}}},
	}}
	w.create(work)

	one, two := object("v1", "ConfigMap", w.home, "one"), object("v1", "ConfigMap", w.home, "two")

	w.eventually("the work is available", func() bool {
		return ofWork(w.get(work), "Available") == "True ResourcesAvailable"
	})

	if got := ofWork(w.get(work), "Applied"); got != "True AppliedManifestWorkComplete" {
		t.Errorf("Applied is %s", got)
	}

	if got := fmt.Sprint(ofManifest(w.get(work), 0)["statusFeedback"]); !strings.Contains(got, "name:value") || !strings.Contains(got, "string:1") {
		t.Errorf("feedback is %s", got)
	}

	// A manifest that goes takes its object with it; a change of one comes through.
	w.patch(work, map[string]any{"spec": map[string]any{"workload": map[string]any{"manifests": []any{w.configMap("one", "new")}}}})

	w.eventually("the second object goes, the first changes", func() bool {
		data, _, _ := unstructured.NestedString(w.get(one).Object, "data", "a")

		return w.get(two) == nil && data == "new"
	})

	if err := env.Client.Delete(t.Context(), work); err != nil {
		t.Fatal(err)
	}

	w.eventually("the work goes", func() bool { return w.get(work) == nil })

	if w.get(one) != nil {
		t.Error("the work went before its object")
	}
}

func TestOrphansStay(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	work := w.work("app", w.configMap("one", "1"))
	w.create(work)

	one := object("v1", "ConfigMap", w.home, "one")
	w.eventually("the object comes", func() bool { return w.get(one) != nil && ofWork(w.get(work), "Applied") != "" })

	w.patch(work, map[string]any{"spec": map[string]any{"deleteOption": map[string]any{"propagationPolicy": "Orphan"}}})

	if err := env.Client.Delete(t.Context(), work); err != nil {
		t.Fatal(err)
	}

	w.eventually("the work goes", func() bool { return w.get(work) == nil })

	if got := w.get(one); got == nil || len(got.GetOwnerReferences()) > 0 {
		t.Errorf("the object did not stay by itself: %v", got)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.agent.SetFaults(ocm.Faults{Refuse: func(m *unstructured.Unstructured) string {
		if m.GetName() == "bad" {
			return "quota exceeded"
		}

		return ""
	}})

	work := w.work("app", w.configMap("good", "1"), w.configMap("bad", "1"))
	w.create(work)

	w.eventually("the refusal is told", func() bool { return ofWork(w.get(work), "Applied") == "False AppliedManifestWorkFailed" })

	if got := fmt.Sprint(ofManifest(w.get(work), 1)); !strings.Contains(got, "Failed to apply manifest: quota exceeded") {
		t.Errorf("the manifest's status is %s", got)
	}

	w.agent.SetFaults(ocm.Faults{})
	w.eventually("it is applied later", func() bool { return ofWork(w.get(work), "Applied") == "True AppliedManifestWorkComplete" })
}

func TestValidate(t *testing.T) {
	t.Parallel()

	w := &world{T: t, home: "home", cluster: "c1"}
	generated := object("v1", "ConfigMap", "home", "x")
	generated.SetGenerateName("x-")

	cases := map[string]struct {
		manifests []any
		want      string
	}{
		"good":          {manifests: []any{w.configMap("one", "1")}},
		"empty":         {want: "manifests should not be empty"},
		"no kind":       {manifests: []any{map[string]any{"metadata": map[string]any{"name": "x"}}}, want: "'Kind' is missing"},
		"no name":       {manifests: []any{object("v1", "ConfigMap", "home", "").Object}, want: "name must be set in manifest"},
		"generate name": {manifests: []any{generated.Object}, want: "generateName must not be set"},
		"big":           {manifests: []any{w.configMap("one", strings.Repeat("x", 500*1024))}, want: "exceeds the 512000 limit"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			err := ocm.Validate(w.work("app", tc.manifests...))
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Validate() = %v, want %q", err, tc.want)
			}
		})
	}
}
