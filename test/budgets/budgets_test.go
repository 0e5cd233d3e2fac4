// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package budgets_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/ignition"
	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
	"github.com/hyperfleet/hyperfleet/workload/generic"
	"github.com/hyperfleet/hyperfleet/workload/gitea"
	"github.com/hyperfleet/hyperfleet/workload/github"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

// inputKind is a kind of text that tenants or senders of webhooks write.
type inputKind struct {
	read func(text string) error
	// size is the maximum size that the API server, a template's limit or the receiver accepts.
	size int
	// own are shapes for this kind only.
	own map[string]func(size int) string
	// brief are the only shapes to test with the race detector, or empty for all shapes.
	brief []string
}

// inputKinds returns all kinds by name.
func inputKinds() map[string]inputKind {
	const (
		object = 1 << 20 // the limit of a Secret or a ConfigMap, and approximately that of an object
		user   = cloudinit.MaxUserData
		other  = 64 << 10
	)

	out := map[string]inputKind{
		"kubeconfig":             {read: readKubeconfig, size: object},
		"virtualMachineTemplate": {read: readMachine, size: object},
		"ignition":               {read: readIgnition, size: object},
		"flavor":                 {read: readFlavor, size: object, brief: []string{"one string", "objects", "tabs", "keys"}},
		"networkData":            {read: readNetworkData, size: other},
		"metaData":               {read: readMetaData, size: other},
		"userData":               {read: readUserData, size: user},
		"network data":           {read: readNetwork, size: object},
		"webhook of GitHub":      {read: readWebhook(v1alpha1.WorkloadGitHubActions, github.HeaderEvent, "workflow_job"), size: object},
		"webhook of GitLab":      {read: readWebhook(v1alpha1.WorkloadGitLabCI, "X-Gitlab-Event", "Job Hook"), size: object},
		"webhook of Buildkite":   {read: readWebhook(v1alpha1.WorkloadBuildkite, "X-Buildkite-Event", "job.scheduled"), size: object},
		"webhook of Gitea":       {read: readWebhook(v1alpha1.WorkloadGiteaActions, gitea.HeaderEvent, "workflow_job"), size: object},
		"webhook of others":      {read: readWebhook(v1alpha1.WorkloadGeneric, "X-None", ""), size: object},
	}
	maps.Copy(out, moreKinds())

	return out
}

// TestNoInputTakesMuch checks that no text that the API server or the receiver accepts makes the operator use much
// memory or CPU time.
func TestNoInputTakesMuch(t *testing.T) { //nolint:paralleltest // it measures allocations
	checkUsage(t, slower > 1)
}

// TestSoakNoInputTakesMuch is TestNoInputTakesMuch with every size.
func TestSoakNoInputTakesMuch(t *testing.T) { //nolint:paralleltest // as above
	property.Soak(t)
	checkUsage(t, false)
}

// checkUsage measures each kind with texts of all shapes.
func checkUsage(t *testing.T, brief bool) {
	t.Helper()

	sizes := everySize
	if brief {
		sizes = fewSizes
	}

	for name, one := range inputKinds() {
		t.Run(name, func(t *testing.T) {
			var most resourceUse

			all := shapes()
			maps.Copy(all, one.own)

			for shape, text := range all {
				if brief && len(one.brief) > 0 && !slices.Contains(one.brief, shape) {
					continue
				}

				sizes(one.size, func(size int) bool {
					text := text(size)
					took, err := measure(t, func() error { return one.read(text) })
					most = resourceUse{bytes: max(most.bytes, took.bytes), cpu: max(most.cpu, took.cpu)}

					if took.bytes > maxBytes || took.cpu > maxTime {
						t.Errorf("%d bytes of %s: %.1f MiB of memory and %s of CPU time (error %.200v)",
							len(text), shape, float64(took.bytes)/(1<<20), took.cpu, err)
					}

					return isRejected(err)
				})
			}

			t.Logf("at most %.1f MiB and %s", float64(most.bytes)/(1<<20), most.cpu)
		})
	}
}

// minSize is a size that is cheap to read with any content.
const minSize = 1 << 10

// everySize tries sizes from the largest down by a third each time, to the first one that is not rejected.
func everySize(most int, refused func(size int) bool) {
	for size := most; size > minSize && refused(size); size -= size / 3 {
		continue
	}
}

// fewSizes tries the largest size, and then bisects to the largest size that is not rejected. It needs a third of
// the attempts of everySize, and ends within a third of that size.
func fewSizes(most int, refused func(size int) bool) {
	if !refused(most) {
		return
	}

	for low, high := minSize, most; high > low+low/2; {
		middle := int(math.Sqrt(float64(low) * float64(high)))
		if refused(middle) {
			high = middle
		} else {
			low = middle
		}
	}
}

// TestSizes checks that everySize and fewSizes find nearly the largest accepted size.
func TestSizes(t *testing.T) {
	t.Parallel()

	const most = 1 << 20

	for _, limit := range []int{2 << 10, 5000, 64 << 10, 300_000, most - 1, most} {
		for name, sizes := range map[string]func(int, func(int) bool){"every": everySize, "few": fewSizes} {
			tries, largest := 0, 0

			sizes(most, func(size int) bool {
				tries++

				if size > limit {
					return true
				}

				largest = max(largest, size)

				return false
			})

			if largest < limit*2/3-1 || name == "few" && tries > 6 {
				t.Errorf("%s with a limit of %d: %d attempts, the largest accepted size is %d", name, limit, tries, largest)
			}
		}
	}
}

// isRejected returns true if an error is about a limit. Errors of package cloudinit wrap no other error.
func isRejected(err error) bool {
	return err != nil && (strings.Contains(err.Error(), bounds.ErrTooLarge.Error()) || strings.Contains(err.Error(), "more than "))
}

func readKubeconfig(text string) error {
	_, err := credential.RESTConfig([]byte(text))

	return err
}

func readMachine(text string) error {
	machine := &infrav1.KubevirtMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}
	machine.Spec.VirtualMachineTemplate.Raw = []byte(text)

	_, err := kubevirt.NewVirtualMachine(machine, "", "")

	return err
}

// worker is an Ignition configuration as HyperShift serves it, with a machine's configuration in the middle.
const (
	workerBegin = `{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/ignition-machine-config-encapsulated.json",` +
		`"contents":{"source":"data:,`
	workerEnd = `"}}]}}`
	worker    = workerBegin + `{%22spec%22:{}}` + workerEnd
)

func readIgnition(text string) error {
	_, err := ignition.BuildTemplate(ignition.Inputs{Worker: []byte(worker), Flavor: map[string]any{}, Target: []byte(text), Live: []byte(text)})

	return err
}

// readFlavor reads a flavor that the API server has decoded.
func readFlavor(text string) error {
	_, err := ignition.BuildTemplate(ignition.Inputs{
		Worker: []byte(worker), Flavor: map[string]any{"spec": map[string]any{"text": text}},
		Target: []byte(`{"ignition":{"version":"3.4.0"}}`), Live: []byte(`{"ignition":{"version":"3.4.0"}}`),
	})

	return err
}

func readNetworkData(text string) error {
	_, err := cloudinit.Render(cloudinit.Input{
		InstanceID: "i", Hostname: "h", NetworkData: text,
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")},
	})

	return err
}

func readMetaData(text string) error {
	_, err := cloudinit.Render(cloudinit.Input{InstanceID: "i", Hostname: "h", MetaData: text})

	return err
}

func readUserData(text string) error {
	_, err := cloudinit.Render(cloudinit.Input{InstanceID: "i", Hostname: "h", UserData: "#cloud-config\n" + text, Config: &guest.Config{}})

	return err
}

// readNetwork reads a KubevirtMachine's network data.
func readNetwork(text string) error {
	_, _, err := netdata.Expand([]byte(text), netdata.Allocation{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}, Interface: "eth0",
	})

	return err
}

type anySecret struct{}

func (anySecret) ReadValue(context.Context, v1alpha1.SecretKeySelector, string) (string, error) {
	return "", nil
}

// readWebhook returns a function that handles a webhook, first before its signature is verified, and then after.
func readWebhook(platform, header, event string) func(string) error {
	platforms := demand.Platforms{
		v1alpha1.WorkloadBuildkite:     buildkite.Platform{},
		v1alpha1.WorkloadGiteaActions:  gitea.Gitea(),
		v1alpha1.WorkloadGeneric:       generic.Platform{},
		v1alpha1.WorkloadGitHubActions: github.NewPlatform(),
		v1alpha1.WorkloadGitLabCI:      gitlab.Platform{},
	}
	parser := workload.WebhookParser(platforms[platform])

	scheme := k8sruntime.NewScheme()
	_ = v1alpha1.AddToScheme(scheme)

	receiver := demand.NewReceiver(demand.ReceiverConfig{
		Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Secrets: anySecret{}, Platforms: platforms,
	})

	return func(text string) error {
		req := httptest.NewRequest(http.MethodPost, "/webhooks/"+platform, bytes.NewReader([]byte(text)))
		req.SetPathValue("platform", platform)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(header, event)

		response := httptest.NewRecorder()
		receiver.ServeHTTP(response, req)

		switch response.Code {
		case http.StatusRequestEntityTooLarge:
			return fmt.Errorf("%w: %s", bounds.ErrTooLarge, response.Body)
		case http.StatusNotFound:
			return fmt.Errorf("%d: %s", response.Code, response.Body)
		}

		_, _, err := parser.ParseJob(req.Header, []byte(text))

		return err
	}
}
