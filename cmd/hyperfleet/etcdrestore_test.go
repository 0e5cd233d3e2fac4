// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/mac"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt/crds"
	"github.com/hyperfleet/hyperfleet/sim/machost/machosttest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/scaleway"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// etcdSite is a control plane whose etcd can be restored, with the whole operator, a pool of runners, a node pool on
// KubeVirt, and a Mac at Scaleway.
type etcdSite struct {
	*testing.T

	plane   *kubeproc.Cluster
	fleet   *fleet.Fleet
	virt    *kubevirt.Cluster
	macs    *scaleway.Simulator
	process *procrun.Process
	// health is the address of the operator's probes. config and kubeconfig are the paths of its files.
	health, config, kubeconfig string
}

// TestEtcdIsRestored restores the data directory of etcd, after jobs have run, machines were created and deleted, and
// a Mac was ordered. The operator starts again, and everything converges: no machine, address or server exists twice, no
// running job ends, no condition is wrongly True, and nothing is left but the server of which docs/operate/restore.md
// says so.
func TestEtcdIsRestored(t *testing.T) {
	t.Parallel()

	s := newEtcdSite(t)
	backup := filepath.Join(t.TempDir(), "etcd")

	s.scaleNodes(2)
	s.createMac("mac-1")
	s.waitForServer("mac-1")

	first := s.mac("mac-1").Status.ServerID
	releaseOld := s.holdJob("runs before and after")
	s.stopAndChange(func(dir string) error { return os.CopyFS(backup, os.DirFS(dir)) })
	s.startOperator()

	// What the backup does not have: the job ends and its machine is deleted, another job starts on a new machine, the
	// third node gets an address, a node is replaced, and a Mac is ordered.
	releaseOld()
	s.eventually("the job and its machine have ended", func() (bool, string) {
		return s.fleet.CountSuccessfulJobs() == 1 && len(s.fleet.PVE.Snapshot().CreatedVMs()) == 0, s.fleet.Describe()
	})

	releaseNew := s.holdJob("runs since the backup")
	running := s.fleet.PVE.Snapshot().CreatedVMs()

	s.scaleNodes(3)
	must.Do(t, s.fleet.Client.Delete(t.Context(), &s.nodes()[0]))
	s.waitForNodes(3)
	s.createMac("mac-2")
	s.waitForServer("mac-2")

	s.stopAndChange(func(dir string) error {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}

		return os.CopyFS(dir, os.DirFS(backup))
	})
	s.startOperator()
	s.waitForNodes(2)

	// The job whose claim is lost runs to its end, and the next job runs once.
	s.fleet.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Name: "after the restore", Duration: 50 * time.Millisecond})
	s.fleet.EventuallyJobsDone(2)

	if now := s.fleet.PVE.Snapshot().CreatedVMs(); !slices.ContainsFunc(now, func(vm pve.VMState) bool { return vm.VMID == running[0].VMID }) {
		t.Errorf("VM %d was deleted while its job ran", running[0].VMID)
	}

	s.checkConditions()
	releaseNew()
	s.fleet.EventuallyJobsDone(3)
	s.fleet.EventuallyClean()

	if n := s.fleet.CountClones(); n != 3 {
		t.Errorf("%d machines were created for 3 jobs", n)
	}

	s.checkMacs(first)
	s.checkConditions()
}

func newEtcdSite(t *testing.T) *etcdSite {
	t.Helper()

	s := &etcdSite{T: t, health: loopback.Address(t)}

	_, err := exe.FindTool("managers", "kube-controller-manager")
	must.Do(t, err)

	s.plane, err = kubeproc.Start(context.Background(), kubeproc.Options{Dir: t.TempDir(), ControllerManager: true})
	must.Do(t, err)
	t.Cleanup(func() { must.Do(t, s.plane.Stop()) })

	env := s.newEnv()
	must.Do(t, kubeproc.Apply(t.Context(), env.Config, "../../deploy/crds"))
	must.Do(t, crds.Install(t.Context(), env.Config))

	webhooks := loopback.Address(t)
	s.fleet = fleet.New(t, env, fleet.Options{})
	s.fleet.GitHub.SetWebhook(control.WebhookTarget{URL: "http://" + webhooks + "/webhooks/github", Secret: "hook"})
	s.fleet.SetSecret("webhook", "secret", "hook")
	s.fleet.Populate(3)

	s.virt, err = kubevirt.Start(env.Config, kubevirt.Options{Namespaces: []string{s.fleet.Namespace}})
	must.Do(t, err)
	t.Cleanup(func() { _ = s.virt.Close() })

	s.macs = scaleway.New(scaleway.Options{DeliveryTime: time.Second, MinimumLease: time.Millisecond})
	cloud := httptest.NewServer(s.macs)
	t.Cleanup(cloud.Close)
	s.createSecrets(cloud.URL)

	s.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, kubeproc.WriteKubeconfig(s.kubeconfig, env.Config))

	s.config = writeTempFile(t, s.formatConfig(webhooks, cloud.URL))
	s.startOperator()
	s.fleet.EventuallyReady(s.fleet.NewPool(3))

	return s
}

// newEnv returns an environment of tests on the control plane.
func (s *etcdSite) newEnv() *kube.Env {
	s.Helper()

	env := &kube.Env{Scheme: runtime.NewScheme()}
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme, infrav1.AddToScheme, virtv1.AddToScheme} {
		must.Do(s.T, add(env.Scheme))
	}

	var err error

	env.Config, err = s.plane.AdminConfig()
	must.Do(s.T, err)

	env.Client, err = client.New(env.Config, client.Options{Scheme: env.Scheme})
	must.Do(s.T, err)

	return env
}

func (s *etcdSite) formatConfig(webhooks, cloud string) string {
	s.Helper()

	agent := writeTempFile(s.T, "agent")

	return fmt.Sprintf(`
apiVersion: config.hyperfleet.io/v1alpha1
kind: OperatorConfig
operatorUID: %[1]s
namespace: %[1]s
controllers: [runners, networking, hosts]
leaderElection: {enabled: false}
metrics: {bindAddress: '0'}
webhooks: {bindAddress: %[2]q, ownAuthority: false}
health: {bindAddress: %[3]q}
guest: {url: %[4]q}
runners:
  clusterInterval: 1s
  templateInterval: 1s
  orphanInterval: 1s
  orphanAge: 1s
  taskInterval: 25ms
  listInterval: 100ms
  platformURLs: [%[5]q, %[6]q]
hosts: {mac: {maxPods: 2, tartKubeletFile: %[7]q, tartFile: %[7]q, nodeExporterFile: %[7]q}}
`, s.fleet.Namespace, webhooks, s.health, "http://"+webhooks, s.fleet.GitHub.URL, cloud, agent)
}

func (s *etcdSite) createSecrets(cloud string) {
	s.Helper()

	key, _ := machosttest.NewKey(s.T)

	for name, data := range map[string]map[string]string{
		"scaleway": {
			infrav1.ScalewayAccessKey: scaleway.DefaultAccessKey, infrav1.ScalewaySecretKey: scaleway.DefaultSecretKey,
			infrav1.ScalewayProjectID: scaleway.DefaultProject, infrav1.ScalewayAPIURL: cloud,
		},
		"hosts": {"key": key.Reveal(), "kubeconfig": "users: []"},
	} {
		s.fleet.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.fleet.Namespace, Name: name}, StringData: data})
	}

	s.fleet.Create(&infrav1.HostFleet{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.fleet.Namespace, Name: "macs"}, Spec: infrav1.HostFleetSpec{HostKind: mac.Name},
	})

	attach := false
	s.fleet.Create(&infrav1.KubevirtNodePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.fleet.Namespace, Name: "nodes"},
		Spec: infrav1.KubevirtNodePoolSpec{
			AttachDefaultNetwork: &attach, AdditionalNetworks: []infrav1.KubevirtNetwork{{Name: "vlan"}},
			BootstrapNetworkConfig: &infrav1.KubevirtBootstrapNetworkConfig{
				Addresses: []infrav1.AddressRange{"10.9.0.10-10.9.0.19"}, PrefixLengthV4: 24,
			},
			RootVolume: infrav1.KubevirtRootVolume{DiskImage: infrav1.KubevirtDiskImage{ContainerDiskImage: "registry.example.com/node:1"}},
			Compute:    &infrav1.KubevirtCompute{Cores: 1, Memory: resource.MustParse("1Gi")},
		},
	})
}

func (s *etcdSite) startOperator() {
	s.Helper()

	s.process = startProgram(s.T, nil, "operator", "--kubeconfig", s.kubeconfig, "--config", s.config)
	waitUntilReady(s.T, s.process, s.health)
}

// stopAndChange stops the operator and the control plane, changes the data directory of etcd, and starts the control
// plane again. KubeVirt's controllers also start again, because their watches have ended.
func (s *etcdSite) stopAndChange(change func(dataDir string) error) {
	s.Helper()
	must.Do(s.T, s.process.Stop())
	must.Do(s.T, s.virt.Close())
	must.Do(s.T, s.plane.Restart(context.Background(), change))

	var err error

	s.virt, err = kubevirt.Start(s.fleet.Env.Config, kubevirt.Options{Namespaces: []string{s.fleet.Namespace}})
	must.Do(s.T, err)
}

func (s *etcdSite) eventually(what string, done func() (bool, string)) {
	s.Helper()
	s.fleet.Eventually(what, func() (bool, string) {
		ok, last := done()
		if !ok {
			last += "\n" + s.process.LogTail()
		}

		return ok, last
	})
}

// holdJob queues a job that runs until release is called, and waits until it runs.
func (s *etcdSite) holdJob(name string) (release func()) {
	s.Helper()

	file := filepath.Join(s.TempDir(), "over")
	s.fleet.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Name: name, Command: "until test -e '" + file + "'; do sleep 0.1; done"})
	s.eventually("job "+name+" running", func() (bool, string) {
		jobs := s.fleet.GitHub.State().Jobs

		return jobs[len(jobs)-1].Status == "in_progress", s.fleet.Describe()
	})

	return func() { must.Do(s.T, os.WriteFile(file, nil, 0o600)) }
}

// scaleNodes sets the number of nodes, and waits until they run.
func (s *etcdSite) scaleNodes(count int32) {
	s.Helper()

	pool := &infrav1.KubevirtNodePool{}
	must.Do(s.T, s.fleet.Client.Get(s.Context(), client.ObjectKey{Namespace: s.fleet.Namespace, Name: "nodes"}, pool))

	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, count))
	must.Do(s.T, s.fleet.Client.Patch(s.Context(), pool, patch))
	s.waitForNodes(int(count))
}

func (s *etcdSite) nodes() []infrav1.KubevirtMachine {
	s.Helper()

	var list infrav1.KubevirtMachineList
	must.Do(s.T, s.fleet.Client.List(s.Context(), &list, client.InNamespace(s.fleet.Namespace)))

	return list.Items
}

// waitForNodes waits until so many machines and VirtualMachines exist, each machine runs, and each has another address.
func (s *etcdSite) waitForNodes(count int) {
	s.Helper()
	s.eventually(fmt.Sprintf("%d nodes running", count), func() (bool, string) {
		var vms virtv1.VirtualMachineList
		must.Do(s.T, s.fleet.Client.List(s.Context(), &vms, client.InNamespace(s.fleet.Namespace)))

		machines, addresses := s.nodes(), map[string]bool{}
		var text strings.Builder

		for i := range machines {
			m := &machines[i]
			fmt.Fprintf(&text, "%s %s %v %+v\n", m.Name, m.Status.Phase, m.Status.AllocatedBootstrapAddresses, m.Status.Conditions)

			hasVM := slices.ContainsFunc(vms.Items, func(vm virtv1.VirtualMachine) bool { return vm.Name == m.Name && vm.Status.Ready })
			if hasVM && meta.IsStatusConditionTrue(m.Status.Conditions, "Ready") {
				addresses[fmt.Sprint(m.Status.AllocatedBootstrapAddresses)] = true
			}
		}

		return len(machines) == count && len(vms.Items) == count && len(addresses) == count, text.String()
	})
}

func (s *etcdSite) createMac(name string) {
	s.Helper()
	s.fleet.Create(&infrav1.ScalewayAppleSiliconMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.fleet.Namespace, Name: name},
		Spec: infrav1.ScalewayAppleSiliconMachineSpec{
			FleetName: "macs", CredentialsSecretRef: infrav1.ScalewaySecretRef{Name: "scaleway"},
			SSHHostKeys:         infrav1.SSHHostKeys{SSHHostKeyChecking: infrav1.HostKeyAcceptNew},
			SSHKeySecretRef:     infrav1.LocalSecretKeySelector{Name: "hosts", Key: "key"},
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: "hosts", Key: "kubeconfig"},
		},
	})
}

func (s *etcdSite) mac(name string) *infrav1.ScalewayAppleSiliconMachine {
	s.Helper()

	out := &infrav1.ScalewayAppleSiliconMachine{}
	must.Do(s.T, s.fleet.Client.Get(s.Context(), client.ObjectKey{Namespace: s.fleet.Namespace, Name: name}, out))

	return out
}

// waitForServer waits until a Mac has a delivered server.
func (s *etcdSite) waitForServer(name string) {
	s.Helper()
	s.eventually(name+" having a server", func() (bool, string) {
		status := s.mac(name).Status

		return status.ServerID != "" && meta.IsStatusConditionTrue(status.Conditions, infrav1.ConditionProvisioned), fmt.Sprintf("%+v", status.Conditions)
	})
}

// checkMacs checks that the Mac of the backup has its server, that the server of the lost Mac stays and is not ordered
// again for a Mac with the same name, and that the Mac says so.
func (s *etcdSite) checkMacs(first string) {
	s.Helper()

	if now := s.mac("mac-1").Status.ServerID; now != first {
		s.Errorf("mac-1 has server %s, and had %s", now, first)
	}

	s.createMac("mac-2")
	s.eventually("mac-2 waiting for a person", func() (bool, string) {
		c := meta.FindStatusCondition(s.mac("mac-2").Status.Conditions, infrav1.ConditionProvisioned)

		return c != nil && c.Reason == "PreviousServerExists", fmt.Sprintf("%+v", c)
	})

	var names []string
	for _, server := range s.macs.Servers() {
		names = append(names, server.Name)
	}

	if len(names) != 2 {
		s.Errorf("there are the servers %s, want one of each Mac", strings.Join(names, " "))
	}
}

// checkConditions checks that nothing that does not exist is called ready.
func (s *etcdSite) checkConditions() {
	s.Helper()

	var claims v1alpha1.MachineClaimList
	must.Do(s.T, s.fleet.Client.List(s.Context(), &claims, client.InNamespace(s.fleet.Namespace)))

	vms := s.fleet.PVE.Snapshot().CreatedVMs()

	for _, claim := range claims.Items {
		isReady := meta.IsStatusConditionTrue(claim.Status.Conditions, v1alpha1.ConditionReady)
		if isReady && !slices.ContainsFunc(vms, func(vm pve.VMState) bool { return vm.Name == claim.Name }) {
			s.Errorf("claim %s is ready, and has no machine", claim.Name)
		}
	}

	for _, name := range []string{"mac-1"} {
		if status := s.mac(name).Status; meta.IsStatusConditionTrue(status.Conditions, "Ready") {
			s.Errorf("%s is ready, although nothing answers at its address", name)
		}
	}
}
