// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/kubevirt"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/kit/step"
	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt/kubevirttest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/upstream"
)

// kubeVirtFleet is a fleet whose machines run on KubeVirt.
type kubeVirtFleet struct {
	*fleet.Fleet

	sim *simkubevirt.Cluster
	// machineNamespace is the namespace of the machines.
	machineNamespace string
}

// newKubeVirtFleet creates a fleet with KubeVirt on the operator's own cluster, or with byKubeconfig on a cluster
// that a kubeconfig leads to.
func newKubeVirtFleet(t *testing.T, byKubeconfig bool) *kubeVirtFleet {
	t.Helper()

	image, roots := t.TempDir(), t.TempDir()
	if out, err := exec.Command(filepath.Join(programs, "forgesim"), "image", "--link", image).CombinedOutput(); err != nil {
		t.Fatalf("create image: %v\n%s", err, out)
	}

	guest := simkubevirt.Exec{Program: filepath.Join(programs, "bootstrap-service"), Image: image, WorkDir: roots}
	s := &kubeVirtFleet{machineNamespace: env.Namespace(t)}
	s.sim = kubevirttest.New(t, env.Config, simkubevirt.Options{
		Namespaces: []string{s.machineNamespace}, Guest: guest.Guest, Webhook: upstream.StartVirtAPI(t),
		Delays: simkubevirt.Delays{Schedule: 20 * time.Millisecond, Boot: 20 * time.Millisecond},
	})
	s.Fleet = fleet.New(t, env, fleet.Options{})

	// The operator has only the permissions in deploy/kubevirt-machines.
	operator := s.createOperatorAccount(t)

	cluster := s.NewCluster()
	cluster.Spec = v1alpha1.HypervisorClusterSpec{
		Provider: v1alpha1.ProviderKubeVirt, KubeVirt: &v1alpha1.KubeVirtCluster{Namespace: s.machineNamespace},
	}

	if byKubeconfig {
		cluster.Spec.KubeVirt.KubeconfigSecretRef = s.createKubeconfigSecret(t, operator)
		operator = nil
	}

	s.Hypervisors[v1alpha1.ProviderKubeVirt] = kubevirt.Factory(operator)
	s.CreateCluster(cluster)

	template := s.NewTemplate()
	template.Spec.Template = v1alpha1.TemplateSource{KubeVirt: &v1alpha1.KubeVirtTemplate{
		ContainerDisk: &v1alpha1.ContainerDisk{Image: "registry.example.com/runner:1"},
	}}
	s.Create(template)
	s.Create(s.NewPool(5))

	return s
}

// createOperatorAccount creates the operator's service account with the roles of deploy/kubevirt-machines.
func (s *kubeVirtFleet) createOperatorAccount(t *testing.T) *rest.Config {
	t.Helper()

	const account, home = "hyperfleet-runners", "hyperfleet-system"

	objects, err := kubeproc.ReadObjects("../../deploy/kubevirt-machines/role.yaml", "../../deploy/kubevirt-machines/capacity.yaml")
	if err != nil {
		t.Fatal(err)
	}

	config := env.ServiceAccount(t, home, account)

	for _, obj := range objects {
		if !strings.HasPrefix(obj.GetKind(), "Cluster") {
			obj.SetNamespace(s.machineNamespace)
		}

		err := env.Client.Create(t.Context(), obj)
		if client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}

	return config
}

// createKubeconfigSecret creates a Secret with a kubeconfig for the API server.
func (s *kubeVirtFleet) createKubeconfigSecret(t *testing.T, config *rest.Config) *v1alpha1.SecretKeySelector {
	t.Helper()

	text, err := os.ReadFile(env.Kubeconfig(t, config))
	if err != nil {
		t.Fatal(err)
	}

	s.Create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "kubevirt"}, Data: map[string][]byte{"kubeconfig": text},
	})

	return &v1alpha1.SecretKeySelector{Name: "kubevirt", Key: "kubeconfig"}
}

// listLeftovers returns the objects in the namespace of the machines.
func (s *kubeVirtFleet) listLeftovers(t *testing.T) []string {
	t.Helper()

	var out []string

	for _, list := range []client.ObjectList{
		&virtv1.VirtualMachineList{}, &virtv1.VirtualMachineInstanceList{}, &corev1.SecretList{},
	} {
		if err := env.Client.List(t.Context(), list, client.InNamespace(s.machineNamespace)); err != nil {
			t.Fatal(err)
		}

		switch all := list.(type) {
		case *virtv1.VirtualMachineList:
			for _, o := range all.Items {
				out = append(out, "machine "+o.Name)
			}
		case *virtv1.VirtualMachineInstanceList:
			for _, o := range all.Items {
				out = append(out, "instance "+o.Name)
			}
		case *corev1.SecretList:
			for _, o := range all.Items {
				out = append(out, "secret "+o.Name)
			}
		}
	}

	return out
}

// watchedJobs is the number of jobs that run while their cloud-init Secrets are watched.
const watchedJobs = 1

// TestJobRunsOnKubeVirt checks that a queued job gets a KubeVirt machine and runs in it, and that nothing is left.
func TestJobRunsOnKubeVirt(t *testing.T) {
	t.Parallel()

	for _, way := range []struct {
		name         string
		byKubeconfig bool
	}{
		{"on the operator's own cluster", false},
		{"by a kubeconfig", true},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()

			s := newKubeVirtFleet(t, way.byKubeconfig)
			s.Start()
			s.EventuallyReady(s.NewPool(0))
			s.checkProviderMismatch()
			s.watchSeeds(t)

			queueJobs(s.Fleet, watchedJobs)
			s.EventuallyJobsDone(watchedJobs)
			s.EventuallyClean()
			s.Eventually("the machines being deleted", func() (bool, string) {
				left := s.listLeftovers(t)

				return len(left) == 0, strings.Join(left, ", ")
			})
		})
	}
}

// watchSeeds checks that the Secret with a machine's cloud-init data is emptied after the guest has read it.
func (s *kubeVirtFleet) watchSeeds(t *testing.T) {
	t.Helper()

	watch, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	events, err := watch.Watch(t.Context(), &corev1.SecretList{}, client.InNamespace(s.machineNamespace))
	if err != nil {
		t.Fatal(err)
	}

	filled, emptied := map[types.UID]bool{}, map[types.UID]bool{}
	done := make(chan struct{})

	go func() {
		defer close(done)

		for e := range events.ResultChan() {
			if secret, ok := e.Object.(*corev1.Secret); ok {
				switch {
				case len(secret.Data["user-data"]) > 0:
					filled[secret.UID] = true
				case filled[secret.UID]:
					emptied[secret.UID] = true
				}
			}
		}
	}()

	t.Cleanup(func() {
		events.Stop()
		<-done

		if len(filled) != watchedJobs {
			t.Errorf("%d cloud-init Secrets were created, want %d", len(filled), watchedJobs)
		}

		for uid := range filled {
			if !emptied[uid] {
				t.Errorf("cloud-init Secret %s was never emptied", uid)
			}
		}
	})
}

// checkProviderMismatch creates a template for another kind of hypervisor, and checks that it is not ready.
func (s *kubeVirtFleet) checkProviderMismatch() {
	s.T.Helper()

	misfit := s.NewTemplate()
	misfit.Name = "misfit"
	s.Create(misfit)

	checkContains(s.T, s.EventuallyCondition(misfit, step.Ready, metav1.ConditionFalse, "ProviderMismatch"),
		"HypervisorCluster "+s.Cluster+" has provider kubevirt: set spec.template.kubevirt")
}
