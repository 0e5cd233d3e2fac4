// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	simgithub "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
	"github.com/hyperfleet/hyperfleet/sim/machost"
	"github.com/hyperfleet/hyperfleet/sim/machost/machosttest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/alerts"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

// outage is something that goes wrong around the operator, with the alerts that it raises and the metrics that it
// moves.
type outage struct {
	name            string
	begin           func(s *outageSite, h *alerts.History)
	growth          alerts.Growth
	alerts, metrics []string
}

// outageSite is an operator with all areas, and fleets with a namespace, a hypervisor and a CI platform each.
type outageSite struct {
	*testing.T
	*kube.Env

	// site is the test of all outages.
	site    *testing.T
	process *procrun.Process
	// metrics and webhooks are the addresses of the operator.
	metrics, webhooks string
	// main has a pool of one machine whose job does not end, late has a CI platform whose jobs were queued an hour
	// ago, and lost has machines that lose their claims.
	main, late, lost *fleet.Fleet
}

// TestOutages checks with Prometheus' own engine that each shipped alert fires because of an outage, over the metrics
// of the real operator, and not before.
func TestOutages(t *testing.T) { //nolint:tparallel // one outage after the other
	t.Parallel()

	s := newOutageSite(t)

	for _, tc := range outages() {
		t.Run(tc.name, func(t *testing.T) {
			part := *s
			part.T = t
			history := alerts.NewHistory(t, "http://"+s.metrics+"/metrics")
			tc.begin(&part, history)
			history.WaitUntilFiring(tc.growth, tc.alerts, tc.metrics)
		})
	}
}

func newOutageSite(t *testing.T) *outageSite {
	t.Helper()

	s := &outageSite{
		T: t, site: t, metrics: loopback.Address(t), webhooks: loopback.Address(t),
		Env: kube.Start(t, kube.WithCRDs("../../deploy/crds"), kube.WithSetup(crds.Install),
			kube.WithScheme(v1alpha1.AddToScheme, infrav1.AddToScheme, bridgev1.AddToScheme)),
	}

	silent := func(vm pve.GuestVM, _ func(pve.GuestVM)) { <-vm.Context.Done() }
	full := fleet.Model().WithNodes(1)
	full.VMs = append(full.VMs, pve.VM{VMID: largeVM, Node: "pve1", Storage: "local-lvm", Config: map[string]string{"memory": "122000"}})

	unstable := fleet.Model()
	unstable.Outage.Offline = time.Second

	s.main = s.newFleet(fleet.Options{Model: full, Guest: func(vm pve.GuestVM, run func(pve.GuestVM)) {
		if vm.VMID == largeVM {
			<-vm.Context.Done()
		} else {
			run(vm)
		}
	}}, 1)
	s.late = s.newFleet(fleet.Options{Clock: lateClock{}}, 0)
	s.lost = s.newFleet(fleet.Options{Model: unstable, Guest: silent, GitHub: simgithub.Options{RateLimit: rateLimit}}, 0)

	health := loopback.Address(t)
	s.process = startProgram(t, nil, "operator", "--kubeconfig", s.Kubeconfig(t, s.Config), "--config", writeTempFile(t, s.config(health)))

	waitUntilReady(t, s.process, health)

	for _, f := range []*fleet.Fleet{s.main, s.late, s.lost} {
		f.EventuallyReady(f.NewPool(0))
	}

	pool := s.main.NewPool(1)
	s.patch(pool, func() {
		pool.Spec.Demand = &v1alpha1.DemandSources{Polling: &v1alpha1.Polling{Interval: &metav1.Duration{Duration: time.Second}}}
	})
	s.waitFor("hyperfleet_job_sources_total", `source="poll"`, 1)

	return s
}

const (
	// largeVM is a VM of another user that needs 122,000 of the 131,072 MiB of the main fleet's node.
	largeVM = 200
	// rateLimit is the number of calls that the CI platform of the fleet lost allows in an hour.
	rateLimit = 1000
)

// lateClock is one hour slow.
type lateClock struct{ clock.RealClock }

func (lateClock) Now() time.Time { return time.Now().Add(-time.Hour) }

// newFleet creates a fleet whose CI platform and machines call the operator.
func (s *outageSite) newFleet(options fleet.Options, maxReplicas int32) *fleet.Fleet {
	f := fleet.New(s, s.Env, options)
	f.SetSecret("webhook", "secret", f.Namespace) // so that no pool of another fleet takes the jobs
	f.GitHub.SetWebhook(control.WebhookTarget{URL: "http://" + s.webhooks + "/webhooks/github", Secret: f.Namespace})
	f.Populate(maxReplicas)

	return f
}

// config returns the operator's configuration: short intervals, and a log store that nothing serves.
func (s *outageSite) config(health string) string {
	s.Create(s, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.main.Namespace, Name: "log-store"},
		StringData: map[string]string{"accessKeyId": "id", "secretAccessKey": "secret"},
	})

	agent := writeTempFile(s.T, "agent")

	return fmt.Sprintf(`
apiVersion: config.hyperfleet.io/v1alpha1
kind: OperatorConfig
namespace: %s
metrics: {bindAddress: %q}
webhooks: {bindAddress: %q, ownAuthority: false}
health: {bindAddress: %q}
guest: {url: %q}
runners:
  clusterInterval: 1s
  templateInterval: 1s
  orphanInterval: 1s
  orphanAge: 1s
  taskInterval: 25ms
  listInterval: 100ms
  maxAttempts: 1
  jobSilence: 2s
  platformURLs: [%q, %q, %q]
  logs: {keepIn: store, store: {endpoint: %q, region: eu-1, bucket: logs, secret: log-store}}
hosts:
  retryBase: 1s
  retryCap: 1s
  maxBootstrapAttempts: 1
  linux: {agentFile: %q, nodeExporterFile: %q, vmCIDR: 192.168.122.0/24}
`, s.main.Namespace, s.metrics, s.webhooks, health, "http://"+s.webhooks, s.main.GitHub.URL, s.late.GitHub.URL, s.lost.GitHub.URL,
		"https://"+loopback.Address(s), agent, agent)
}

// queue queues jobs at the CI platform of a fleet.
func queueJobs(f *fleet.Fleet, label, command string, count int) {
	f.GitHub.Queue(control.JobSpec{Labels: []string{label}, Command: command, Count: count})
}

// waitFor waits until a metric has at least a value.
func (s *outageSite) waitFor(metric, labels string, value float64) {
	s.Helper()

	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		got, err := scrape.Sum(s.Context(), "http://"+s.metrics+"/metrics", metric, labels)
		if err == nil && got >= value {
			return
		}

		if time.Now().After(end) {
			s.Fatalf("%s{%s} is %v, %v; want %v", metric, labels, got, err, value)
		}
	}
}

// outages returns all outages. Later outages begin while the earlier ones last.
func outages() []outage {
	return []outage{
		{
			name: "the hypervisor refuses",
			begin: func(s *outageSite, _ *alerts.History) {
				s.late.PVE.AddFault(pve.Fault{Kind: pve.FaultError, Status: http.StatusServiceUnavailable})
			},
			growth:  alerts.Continues,
			alerts:  []string{"HyperFleetClusterNotReady", "HyperFleetObjectNotReady", "HyperFleetExternalCallsFail"},
			metrics: []string{"hyperfleet_object_ready", "hyperfleet_external_call_duration_seconds", "hyperfleet_step_duration_seconds"},
		},
		{
			name: "jobs that nothing serves, delivered an hour late",
			begin: func(s *outageSite, _ *alerts.History) {
				queueJobs(s.late, "gpu", "", 1)
			},
			alerts: []string{"HyperFleetJobsWithoutPool", "HyperFleetJobsWaitTooLong"},
			metrics: []string{
				"hyperfleet_jobs_waiting", "hyperfleet_jobs_oldest_queued_age_seconds", "hyperfleet_webhooks_total",
				"hyperfleet_webhook_duration_seconds", "hyperfleet_objects",
			},
		},
		{
			name: "the log store is down",
			begin: func(s *outageSite, _ *alerts.History) {
				s.Create(s, &v1alpha1.RunnerLog{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: s.main.Namespace, Name: "log", Labels: map[string]string{v1alpha1.LabelLogStore: v1alpha1.LogStorePending},
					},
					Spec: v1alpha1.RunnerLogSpec{Claim: "claim", Text: "log"},
				})
			},
			growth:  alerts.Continues,
			alerts:  []string{"HyperFleetLogsNotStored"},
			metrics: []string{"hyperfleet_runner_log_writes_total"},
		},
		{
			name: "a job fails",
			begin: func(s *outageSite, _ *alerts.History) {
				queueJobs(s.main, "linux", "false", 1)
				s.waitFor("hyperfleet_machine_ended_total", `pool="pool"`, 1)

				pool := s.main.NewPool(1)
				s.main.Eventually("the pool being empty", func() (bool, string) {
					err := s.Client.Get(s.Context(), client.ObjectKeyFromObject(pool), pool)

					return err == nil && pool.Status.Replicas+pool.Status.QueuedJobs+pool.Status.RunningJobs == 0, fmt.Sprintf("%+v %v", pool.Status, err)
				})
				s.main.Eventually("the cluster having no machines, so that the next outage changes their number", func() (bool, string) {
					var cluster v1alpha1.HypervisorCluster

					err := s.Client.Get(s.Context(), client.ObjectKey{Name: s.main.Cluster}, &cluster)

					return err == nil && cluster.Status.Machines == 0, fmt.Sprintf("%d machines, %v", cluster.Status.Machines, err)
				})
			},
			metrics: []string{
				"hyperfleet_job_finished_total", "hyperfleet_job_run_duration_seconds",
				"hyperfleet_job_queue_duration_seconds", "hyperfleet_machine_ended_total", "hyperfleet_machine_phase_duration_seconds",
			},
		},
		{
			name: "more jobs than machines",
			begin: func(s *outageSite, _ *alerts.History) {
				queueJobs(s.main, "linux", "sleep 600", 2)
			},
			alerts: []string{"HyperFleetPoolAtMaximum"},
			metrics: []string{
				"hyperfleet_pool_jobs_queued", "hyperfleet_pool_jobs_running", "hyperfleet_pool_machines", "hyperfleet_pool_machines_desired",
				"hyperfleet_machines", "hyperfleet_cluster_machines", "hyperfleet_node_available",
			},
		},
		{
			name: "the CI platform is down",
			begin: func(s *outageSite, _ *alerts.History) {
				must.Do(s.T, s.main.GitHub.SetFaults(control.Faults{ServerError: 1}))
				s.Cleanup(func() { must.Do(s.site, s.main.GitHub.SetFaults(control.Faults{})) })
				s.waitFor("hyperfleet_job_sources_total", `result="failed"`, 1)
			},
			metrics: []string{"hyperfleet_job_sources_total", "hyperfleet_job_state_checks_total", "hyperfleet_external_call_duration_seconds"},
		},
		{
			name: "a pool is paused",
			begin: func(s *outageSite, _ *alerts.History) {
				pool := s.main.NewPool(1)
				s.patch(pool, func() { pool.Spec.Paused = true })
			},
			alerts:  []string{"HyperFleetPoolPaused"},
			metrics: []string{"hyperfleet_pool_paused"},
		},
		{
			name: "the webhooks have another secret",
			begin: func(s *outageSite, _ *alerts.History) {
				s.late.GitHub.SetWebhook(control.WebhookTarget{URL: "http://" + s.webhooks + "/webhooks/github", Secret: "another"})
				queueJobs(s.late, "gpu", "", 5)
			},
			growth:  alerts.Continues,
			alerts:  []string{"HyperFleetWebhooksRejected"},
			metrics: []string{"hyperfleet_webhooks_total"},
		},
		{
			name:    "one claim is lost",
			begin:   func(s *outageSite, _ *alerts.History) { s.loseClaims(1) },
			alerts:  []string{"HyperFleetOrphansRemoved"},
			metrics: []string{"hyperfleet_orphans_removed_total"},
		},
		{
			name:    "many claims are lost",
			begin:   func(s *outageSite, _ *alerts.History) { s.loseClaims(6) },
			alerts:  []string{"HyperFleetOrphansHeld"},
			metrics: []string{"hyperfleet_orphans_held"},
		},
		{
			name: "a client guesses a claim code",
			begin: func(s *outageSite, _ *alerts.History) {
				s.requestCredential("wrong")
			},
			alerts:  []string{"HyperFleetCredentialMisuse"},
			metrics: []string{"hyperfleet_credential_requests_total", "hyperfleet_devid_requests_total"},
		},
		{
			name:    "VMs crash",
			begin:   (*outageSite).crashVMs,
			alerts:  []string{"HyperFleetMachineFailureRateHigh"},
			metrics: []string{"hyperfleet_machine_ended_total"},
		},
		{
			name:   "no VM starts",
			begin:  func(s *outageSite, _ *alerts.History) { s.failStarts() },
			alerts: []string{"HyperFleetPoolMachinesFailing", "HyperFleetNodeExcluded"},
			metrics: []string{
				"hyperfleet_pool_consecutive_failures", "hyperfleet_node_excluded", "hyperfleet_pool_machines_max", "hyperfleet_pool_machines_min",
			},
		},
		{
			name: "more machines than addresses",
			begin: func(s *outageSite, _ *alerts.History) {
				template := s.lost.NewTemplate()
				template.Name = "addresses"
				template.Spec.Network = &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{
					Pool: &v1alpha1.AddressPool{Addresses: []v1alpha1.AddressRange{"10.9.0.10/32"}, PrefixLengthV4: 24},
				}}
				s.Create(s, template)

				for _, name := range []string{"first", "second"} {
					claim := s.lost.NewClaim(name)
					claim.Spec.TemplateRef.Name = template.Name
					s.Create(s, claim)
				}
			},
			alerts:  []string{"HyperFleetAddressesExhausted"},
			metrics: []string{"hyperfleet_ippool_waiting", "hyperfleet_ippool_size", "hyperfleet_ippool_free"},
		},
		{
			name: "another client uses up the rate limit",
			begin: func(s *outageSite, _ *alerts.History) {
				for range rateLimit * 19 / 20 {
					s.call(http.DefaultClient, http.MethodGet, s.lost.GitHub.URL+"/repos/octo-org/octo-repo/actions/runners", "Bearer "+githubtest.PAT)
				}

				s.Create(s, s.lost.NewClaim("limited"))
			},
			alerts:  []string{"HyperFleetRateLimitLow"},
			metrics: []string{"hyperfleet_external_rate_limit_remaining_calls"},
		},
		{
			name: "another user's VM needs all memory",
			begin: func(s *outageSite, _ *alerts.History) {
				start := fmt.Sprintf("%s/api2/json/nodes/pve1/qemu/%d/status/start", s.main.PVE.URL(), largeVM)
				if status := s.call(s.main.PVE.HTTPClient(), http.MethodPost, start, "PVEAPIToken="+pve.DefaultTokenID+"="+pve.DefaultSecret); status != http.StatusOK {
					s.Fatalf("start VM %d: status %d", largeVM, status)
				}
			},
			alerts:  []string{"HyperFleetHypervisorFull"},
			metrics: []string{"hyperfleet_node_available"},
		},
		{
			name:    "a node is down",
			begin:   func(s *outageSite, _ *alerts.History) { s.lost.PVE.SetNodeDown("pve3", true) },
			alerts:  []string{"HyperFleetNodeOffline"},
			metrics: []string{"hyperfleet_node_online"},
		},
		{
			name: "a host is down",
			begin: func(s *outageSite, _ *alerts.History) {
				s.createHost("down").SetDown(true)
				s.createFleet("down")
			},
			alerts:  []string{"HyperFleetHostsUnreachable"},
			metrics: []string{"hyperfleet_host_fleet_hosts", "hyperfleet_host_push_duration_seconds"},
		},
		{
			name: "scripts fail on a host",
			begin: func(s *outageSite, _ *alerts.History) {
				s.createHost("fails").Inject(machost.Fault{Kind: machost.Fail})
				s.createFleet("fails")
			},
			alerts:  []string{"HyperFleetHostsFailed"},
			metrics: []string{"hyperfleet_host_fleet_hosts"},
		},
		{
			name:    "a bridge with an invalid Secret",
			begin:   func(s *outageSite, _ *alerts.History) { s.createBridge() },
			alerts:  []string{"HyperFleetBridgeFailed"},
			metrics: []string{"hyperfleet_bridge_bridges"},
		},
		{
			name: "the operator ends",
			begin: func(s *outageSite, _ *alerts.History) {
				must.Do(s.T, s.process.Signal(syscall.SIGTERM))
				must.Do(s.T, s.process.Wait(s.Context()))
			},
			alerts:  []string{"HyperFleetOperatorDown"},
			metrics: []string{"hyperfleet_build_info", "hyperfleet_external_rate_limit_calls", "hyperfleet_node_capacity"},
		},
	}
}

// patch reads an object, changes it and writes it.
func (s *outageSite) patch(object client.Object, change func()) {
	s.Helper()
	must.Do(s.T, s.Client.Get(s.Context(), client.ObjectKeyFromObject(object), object))

	base, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		s.Fatalf("%T is no object", object)
	}

	change()
	must.Do(s.T, s.Client.Patch(s.Context(), object, client.MergeFrom(base)))
}

// loseClaims creates machines, and deletes their claims without their finalizers, as a restore of etcd does.
func (s *outageSite) loseClaims(count int) {
	s.Helper()

	var claims []*v1alpha1.MachineClaim

	for i := range count {
		claim := s.lost.NewClaim(fmt.Sprintf("lost-%d-%d", count, i))
		s.Create(s, claim)
		claims = append(claims, claim)
	}

	for _, claim := range claims {
		s.lost.Eventually("a machine that runs", func() (bool, string) {
			err := s.Client.Get(s.Context(), client.ObjectKeyFromObject(claim), claim)

			return claim.Status.Times != nil && claim.Status.Times.Started != nil, fmt.Sprint(claim.Status.Phase, err)
		})
	}

	for _, claim := range claims {
		// The operator must not see the deletion of a claim with finalizers, because it would delete the machine itself.
		s.lost.Eventually("the claim being lost", func() (bool, string) {
			err := s.Client.Patch(s.Context(), claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`)))
			if err == nil {
				err = s.Client.Delete(s.Context(), claim, client.Preconditions{ResourceVersion: &claim.ResourceVersion})
			}

			return err == nil, fmt.Sprint(err)
		})
	}
}

// requestCredential requests the credential and the device identity of a machine with a code that is not the machine's.
func (s *outageSite) requestCredential(code string) {
	s.Helper()

	claim := s.lost.NewClaim("robbed")
	s.Create(s, claim)

	for _, path := range []string{"credential", "devid"} {
		s.call(http.DefaultClient, http.MethodPost,
			fmt.Sprintf("http://%s/machines/%s/%s/%s/%s", s.webhooks, claim.Namespace, claim.Name, claim.UID, path), "Bearer "+code)
	}
}

// call calls a server, and returns the status of its answer.
func (s *outageSite) call(caller *http.Client, method, url, authorization string) int {
	s.Helper()

	request, err := http.NewRequestWithContext(s.Context(), method, url, http.NoBody)
	must.Do(s.T, err)
	request.Header.Set("Authorization", authorization)

	response, err := caller.Do(request)
	must.Do(s.T, err)
	must.Do(s.T, response.Body.Close())

	return response.StatusCode
}

// crashVMs makes twelve machines crash after their start. Nothing counts the first of them in a rate.
func (s *outageSite) crashVMs(h *alerts.History) {
	s.Helper()
	s.Cleanup(s.lost.PVE.AddFault(pve.Fault{Kind: pve.FaultVMCrash}))

	for i := range 12 {
		s.Create(s, s.lost.NewClaim(fmt.Sprint("crash-", i)))

		if i == 0 {
			s.waitFor("hyperfleet_machine_ended_total", `pool=""`, 1)
			h.Scrape()
		}
	}
}

// failStarts makes all machines of a pool fail, one after the other.
func (s *outageSite) failStarts() {
	s.Helper()
	s.Cleanup(s.main.PVE.AddFault(pve.Fault{Kind: pve.FaultTaskError, Path: "/nodes/*/qemu/*/status/start", Reason: "start failed: QEMU exited with code 1"}))

	pool := s.main.NewPool(2)
	pool.Name, pool.Spec.Scaling.MinReplicas = "failing", 2
	s.Create(s, pool)
}

// createHost starts a host and creates its object. Nothing is pushed to it without its fleet.
func (s *outageSite) createHost(name string) *machost.Host {
	s.Helper()

	namespace := s.main.Namespace
	key, authorized := machosttest.NewKey(s)
	host := machosttest.Start(s.site, machost.Options{Name: name, System: machost.Linux, Light: true, User: "hyperfleet", AuthorizedKeys: []string{authorized}})
	address, portText, err := net.SplitHostPort(host.Address())
	must.Do(s.T, err)

	port, err := strconv.ParseInt(portText, 10, 32)
	must.Do(s.T, err)

	s.Create(s, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: map[string]string{"key": key.Reveal(), "kubeconfig": "users: []"},
	})
	s.Create(s, &infrav1.LinuxMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: infrav1.LinuxMachineSpec{
			FleetName: name, Address: address, Port: int32(port), User: "hyperfleet",
			SSHHostKeys:         infrav1.SSHHostKeys{SSHHostKeyChecking: infrav1.HostKeyAcceptNew},
			SSHKeySecretRef:     infrav1.LocalSecretKeySelector{Name: name, Key: "key"},
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: name, Key: "kubeconfig"},
		},
	})

	return host
}

// createFleet creates a fleet, so that the operator pushes to its hosts.
func (s *outageSite) createFleet(name string) {
	s.Helper()
	s.Create(s, &infrav1.HostFleet{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.main.Namespace, Name: name}, Spec: infrav1.HostFleetSpec{HostKind: linux.Name},
	})
}

// createBridge creates a bridge whose Secret has no key.
func (s *outageSite) createBridge() {
	s.Helper()

	namespace := s.main.Namespace
	s.Create(s, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bridge"}, StringData: map[string]string{"another": "key"},
	})

	cluster := hypershift.NewObject(hypershift.DPUClusterKind())
	cluster.SetNamespace(namespace)
	cluster.SetName("dpu")
	cluster.Object["spec"] = map[string]any{"type": "static", "maxNodes": int64(10)}
	s.Create(s, cluster)
	cluster.Object["status"] = map[string]any{"phase": "Ready", "nodesCount": int64(0)}
	must.Do(s.T, s.Client.Status().Update(s.Context(), cluster))

	s.Create(s, &bridgev1.DPFHCPBridge{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bridge"},
		Spec: bridgev1.DPFHCPBridgeSpec{
			DPUClusterRef: bridgev1.ObjectReference{Namespace: namespace, Name: "dpu"}, BaseDomain: "clusters.example.com",
			OCPReleaseImage: "quay.io/openshift-release-dev/ocp-release:4.15.0-x86_64",
			SSHKeySecretRef: bridgev1.LocalObjectReference{Name: "bridge"}, PullSecretRef: bridgev1.LocalObjectReference{Name: "bridge"},
			EtcdStorageClass:                 "none",
			ControlPlaneAvailabilityPolicy:   bridgev1.SingleReplica,
			InfrastructureAvailabilityPolicy: bridgev1.SingleReplica, ClusterType: "dpf-dev",
		},
	})
}
