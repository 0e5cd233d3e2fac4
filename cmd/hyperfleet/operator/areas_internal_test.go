// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/test/fixes"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const ownCRDs = "../../../deploy/crds"

// syncBuffer is a buffer that several goroutines may use.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.text.String()
}

// removeStatusFields removes fields of the status from an installed CRD, and waits until the API server serves the
// changed schema.
func removeStatusFields(t *testing.T, e *kube.Env, reader *schemaReader, area, name string, fields ...string) {
	t.Helper()

	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := e.Client.Get(t.Context(), client.ObjectKey{Name: name}, crd); err != nil {
		t.Fatal(err)
	}

	for _, field := range fields {
		delete(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties, field)
	}

	// The older release was installed with the same command as a newer one, so kubectl owns the fields.
	crd.ManagedFields = nil
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))

	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	if err == nil {
		applied := client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: object})
		err = e.Client.Apply(t.Context(), applied, client.FieldOwner("kubectl"), client.ForceOwnership)
	}

	if err != nil {
		t.Fatal(err)
	}

	eventually(t, "the changed schema", func() bool {
		missing, err := reader.findMissing(area)

		return err == nil && len(missing) > 0
	})
}

func eventually(t *testing.T, what string, holds func() bool, describe ...func() string) {
	t.Helper()

	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			found := []string{what}
			for _, text := range describe {
				found = append(found, text())
			}

			t.Fatalf("after a minute, there is not: %s", strings.Join(found, "\n"))
		}
	}
}

// readWaiting returns the metric of an area that waits for its CRDs.
func readWaiting(t *testing.T, area string) float64 {
	t.Helper()

	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}

	for _, family := range families {
		if family.GetName() != "hyperfleet_area_waits_for_crds" {
			continue
		}

		for _, metric := range family.GetMetric() {
			if metric.GetLabel()[0].GetValue() == area {
				return metric.GetGauge().GetValue()
			}
		}
	}

	return -1
}

// TestOperatorNewerThanItsCRDs runs the operator with a CRD that lacks two status fields. The area of the CRD does not
// start until the CRD is applied, and says so. Another area runs.
func TestOperatorNewerThanItsCRDs(t *testing.T) {
	old := kube.Start(t, kube.WithCRDs(ownCRDs, "../../../deploy/base/namespace.yaml"))

	const machines = "kubevirtmachines.infrastructure.hyperfleet.io"

	reader, err := newSchemaReader(old.Config)
	if err != nil {
		t.Fatal(err)
	}

	removeStatusFields(t, old, reader, config.AreaNetworking, machines, "allocatedBootstrapAddresses", "bootstrapNetwork")

	address, err := procrun.PickAddress()
	if err != nil {
		t.Fatal(err)
	}

	cfg := config.Default()
	cfg.Namespace = "hyperfleet-system"
	cfg.Controllers = []string{config.AreaNetworking, config.AreaHosts}
	cfg.Metrics.BindAddress, cfg.Health.BindAddress = "0", address
	cfg.LeaderElection.Enabled = false

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	logs := &syncBuffer{}

	go func() {
		ended <- run(ctx, cfg, old.RecordUses("", old.Config), slog.New(slog.NewTextHandler(logs, nil)))
	}()

	defer func() {
		stop()

		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	readyz := func() string {
		response, err := http.Get("http://" + address + "/readyz/networking")
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()

		text, _ := io.ReadAll(response.Body)

		return response.Status + " " + string(text)
	}

	eventually(t, "readyz fails", func() bool { return strings.HasPrefix(readyz(), "500") })
	eventually(t, "a warning in the log", func() bool {
		return strings.Contains(logs.String(), "CRD "+machines+" is older than the operator and lacks status.allocatedBootstrapAddresses, status.bootstrapNetwork") &&
			strings.Contains(logs.String(), "level=WARN") && strings.Contains(logs.String(), "kubectl apply --server-side -f hyperfleet-crds.yaml")
	})

	if networking, hosts := readWaiting(t, config.AreaNetworking), readWaiting(t, config.AreaHosts); networking != 1 || hosts != 0 {
		t.Errorf("the metrics are %v for networking and %v for hosts", networking, hosts)
	}

	fleet := &infrav1.HostFleet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "fleet"}, Spec: infrav1.HostFleetSpec{HostKind: "LinuxMachine"}}
	old.Create(t, fleet)
	eventually(t, "the other area reconciles", func() bool {
		return old.Client.Get(t.Context(), client.ObjectKeyFromObject(fleet), fleet) == nil && len(fleet.Status.Conditions) > 0
	})

	old.Apply(t, ownCRDs)
	eventually(t, "readyz succeeds without a restart", func() bool { return strings.HasPrefix(readyz(), "200") })

	if networking := readWaiting(t, config.AreaNetworking); networking != 0 {
		t.Errorf("the metric is %v after the CRDs were applied", networking)
	}

	checkDowngrade(t, old, reader, fleet.Spec, logs)
}

// checkDowngrade checks that an object says that its CRD became older than the running operator, and is reconciled again
// once the CRD is applied.
func checkDowngrade(t *testing.T, old *kube.Env, reader *schemaReader, spec infrav1.HostFleetSpec, logs *syncBuffer) {
	t.Helper()

	removeStatusFields(t, old, reader, config.AreaHosts, "hostfleets.infrastructure.hyperfleet.io", "hosts", "observedGeneration")

	fleet := &infrav1.HostFleet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late"}, Spec: spec}
	old.Create(t, fleet)

	readReady := func() *metav1.Condition {
		if err := old.Client.Get(t.Context(), client.ObjectKeyFromObject(fleet), fleet); err != nil {
			t.Fatal(err)
		}

		return meta.FindStatusCondition(fleet.Status.Conditions, step.Ready)
	}

	eventually(t, "the condition says that the CRD is outdated", func() bool {
		ready := readReady()

		return ready != nil && ready.Reason == step.ReasonCRDOutdated && strings.Contains(ready.Message, "the CRD of HostFleet") &&
			strings.Contains(ready.Message, "status.observedGeneration") && strings.Contains(ready.Message, "hyperfleet-crds.yaml")
	}, func() string { return fmt.Sprintf("%+v", readReady()) }, logs.String)
	fixes.Kubectl(t, old, readReady().Message, "hyperfleet-crds.yaml", ownCRDs)

	fleet.Labels = map[string]string{"changed": "yes"} // an event, so that the test does not wait for the retry
	eventually(t, "it is ready", func() bool {
		_ = old.Client.Update(t.Context(), fleet)
		ready := readReady()

		return ready != nil && ready.Reason != step.ReasonCRDOutdated && fleet.Status.ObservedGeneration > 0
	})
}
