// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package upgrade_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var freeze = flag.String("freeze", "", "version, such as v0.2.0, whose folder in testdata is written")

const samples = "../../deploy/samples"

// objectRecorder has the first object of each kind in each state.
type objectRecorder struct {
	mu      sync.Mutex
	objects map[string]*unstructured.Unstructured
}

func (s *objectRecorder) add(object *unstructured.Unstructured) {
	state, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	if job, _, _ := unstructured.NestedString(object.Object, "spec", "state"); job != "" {
		state = job
	}

	switch {
	case state != "":
	case object.Object["status"] != nil:
		state = "WithStatus"
	default:
		state = "New"
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if key := object.GetKind() + " " + state; s.objects[key] == nil {
		s.objects[key] = object.DeepCopy()
	}
}

func (s *objectRecorder) has(keys ...string) (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, key := range keys {
		if s.objects[key] == nil {
			return false, "no " + key
		}
	}

	return true, ""
}

// watch records every state of objects of the kinds of runners.
func (s *objectRecorder) watch(ctx context.Context, t *testing.T, env *kube.Env) {
	t.Helper()

	watching, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	for _, kind := range []string{
		"HypervisorCluster", "HypervisorMachineTemplate", "RunnerPool", "RunnerJob", "RunnerJobBatch", "RunnerLog", "MachineClaim",
	} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))

		events, err := watching.Watch(ctx, list)
		if err != nil {
			t.Fatal(err)
		}

		go func() {
			for event := range events.ResultChan() {
				if object, ok := event.Object.(*unstructured.Unstructured); ok && event.Type != "DELETED" {
					s.add(object)
				}
			}
		}()
	}
}

// TestFreeze creates objects of each kind in all of their states, and with the flag -freeze writes them as the
// test data of a release.
func TestFreeze(t *testing.T) {
	t.Parallel()

	env := startServer(t, currentCRDs)
	all := &objectRecorder{objects: map[string]*unstructured.Unstructured{}}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()

	all.watch(ctx, t, env)

	w := newFixture(t, env, fleet.Model())
	w.Timeout = time.Minute
	w.Runners.MaxAttempts = 1
	w.PVE.AddFault(pve.Fault{Kind: pve.FaultTaskError, Path: "/nodes/*/qemu/*/clone", Reason: "clone failed: boom", Count: 1})

	stray := w.NewClaim("stray")
	stray.Spec.TemplateRef.Name = "none"
	w.Create(stray)
	w.Start()
	w.EventuallyReady(w.NewPool(0))

	doomed := w.NewClaim("doomed")
	w.Create(doomed)
	sees := func(keys ...string) {
		w.Eventually("objects in all their states", func() (bool, string) { return all.has(keys...) })
	}
	sees("MachineClaim Failed")
	w.queueJobs(2)
	sees("MachineClaim Bootstrapping")
	w.bootGuests(2)
	w.waitForRunningJobs(2)
	sees("MachineClaim Ready", "RunnerJob Running")
	w.deleteBusyClaim()
	sees("MachineClaim Draining")
	// The operator writes the phase of a claim that is deleted only if the deletion fails or takes long.
	w.PVE.AddFault(pve.Fault{Kind: pve.FaultTaskError, Method: "DELETE", Path: "/nodes/*/qemu/*", Reason: "destroy failed: boom", Count: 2})
	w.endJobs()
	w.EventuallyJobsDone(2)
	sees("HypervisorCluster WithStatus", "HypervisorMachineTemplate WithStatus", "RunnerPool WithStatus", "RunnerJob Queued",
		"RunnerJob Completed", "MachineClaim Pending", "MachineClaim Provisioning", "MachineClaim Terminating")

	for _, claim := range []*v1alpha1.MachineClaim{doomed, stray} {
		if err := client.IgnoreNotFound(w.Client.Delete(t.Context(), claim)); err != nil {
			t.Fatal(err)
		}
	}

	w.EventuallyClean()
	stop()

	if *freeze != "" {
		all.write(t, w.Fleet, filepath.Join("testdata", *freeze))
	}
}

// deleteBusyClaim deletes a claim whose runner has a job.
func (w *fixture) deleteBusyClaim() {
	w.T.Helper()

	var claims v1alpha1.MachineClaimList
	if err := w.Client.List(w.T.Context(), &claims, client.InNamespace(w.Namespace)); err != nil {
		w.T.Fatal(err)
	}

	for i := range claims.Items {
		if claims.Items[i].Status.Phase == v1alpha1.MachineClaimReady {
			if err := w.Client.Delete(w.T.Context(), &claims.Items[i]); err != nil {
				w.T.Fatal(err)
			}

			return
		}
	}

	w.T.Fatal("no claim is ready")
}

const header = "# Objects of %s as its operator had them, one for each kind and state. `make freeze` wrote it.\n"

// write writes the current CRDs, the recorded objects, and the samples of other kinds.
func (s *objectRecorder) write(t *testing.T, f *fleet.Fleet, dir string) {
	t.Helper()

	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}

	if err := os.CopyFS(filepath.Join(dir, "crds"), os.DirFS(currentCRDs)); err != nil {
		t.Fatal(err)
	}

	if err := os.Remove(filepath.Join(dir, "crds", "Kustomization")); err != nil {
		t.Fatal(err)
	}

	files, err := filepath.Glob(samples + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}

	given, err := kubeproc.ReadObjects(append(files, samples+"/written-by-the-operator")...)
	if err != nil {
		t.Fatal(err)
	}

	kinds := readCRDs(t, currentCRDs)

	for i, object := range given {
		group := object.GroupVersionKind().Group
		for _, crd := range kinds {
			if crd.Spec.Group == group && crd.Spec.Names.Kind == object.GetKind() {
				s.objects[fmt.Sprintf("%s sample %03d", object.GetKind(), i)] = object
			}
		}
	}

	own := strings.NewReplacer(f.Namespace, "ci", f.OperatorUID, "ci")
	ports := regexp.MustCompile(`127\.0\.0\.1:\d+`)

	var out strings.Builder

	fmt.Fprintf(&out, header, filepath.Base(dir))

	keys := make([]string, 0, len(s.objects))
	for key := range s.objects {
		keys = append(keys, key)
	}

	slices.Sort(keys)

	for _, key := range keys {
		object := s.objects[key]
		labels, annotations := object.GetLabels(), object.GetAnnotations()
		// Names have kind and state, so that they are unique.
		name := strings.ToLower(strings.ReplaceAll(key, " ", "-"))
		object.Object["metadata"] = map[string]any{"name": name}
		object.SetLabels(labels)
		object.SetAnnotations(annotations)

		raw, err := yaml.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}

		out.WriteString("---\n" + ports.ReplaceAllString(own.Replace(string(raw)), "127.0.0.1:8006"))
	}

	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
