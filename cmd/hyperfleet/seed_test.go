// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// seeder creates the objects of a fleet in the state of a busy day.
type seeder struct {
	t         *testing.T
	namespace string
	now       time.Time
}

var seed sync.Once

// seedFleet creates that fleet once, and returns its namespace. The namespace is visible in the screenshots. Tests must
// only read it.
func seedFleet(t *testing.T) string {
	t.Helper()

	const namespace = "ci"

	seed.Do(func() {
		env.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		(&seeder{t, namespace, time.Now()}).fleet()
	})

	return namespace
}

// sample reads the first object of a sample.
func (s *seeder) sample(file string, into client.Object) {
	s.t.Helper()

	raw, err := os.ReadFile("../../deploy/samples/" + file)
	must.Do(s.t, err)

	first, _, _ := strings.Cut(string(raw), "\n---")
	must.Do(s.t, yaml.UnmarshalStrict([]byte(first), into))
}

// write creates an object with its status.
func (s *seeder) write(obj client.Object, status func()) {
	s.t.Helper()

	if obj.GetNamespace() != "" {
		obj.SetNamespace(s.namespace)
	}

	createWithStatus(s.t, obj, func(client.Object) { status() })
}

func (s *seeder) ago(d time.Duration) *metav1.MicroTime {
	at := metav1.NewMicroTime(s.now.Add(-d))

	return &at
}

func (s *seeder) ready(status metav1.ConditionStatus, reason, message string, ago time.Duration) []metav1.Condition {
	return []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: message,
		LastTransitionTime: metav1.NewTime(s.now.Add(-ago)),
	}}
}

// fleet creates the objects for every page.
func (s *seeder) fleet() {
	s.cluster("rack-a", 4, func(int) string { return "" })
	s.cluster("rack-b", 3, func(i int) string {
		return map[int]string{1: "storage local-zfs: 3 clones in a row failed, it is tried again in 4m: no space left on device"}[i]
	})

	s.pool("linux-large", 12, 9, 0, 3, 21, s.ready(metav1.ConditionTrue, "AsDesired", "12 machines for 21 queued and 9 running jobs, at most 12", time.Hour), nil)
	s.pool("linux-small", 10, 0, 4, 0, 0, s.ready(metav1.ConditionTrue, "AsDesired", "4 machines are kept warm", time.Hour), nil)
	s.pool("arm64", 8, 0, 0, 1, 2, s.ready(metav1.ConditionFalse, "MachinesFailing",
		"3 machines in a row ended before their runner was online: the image has no cloud-init. The next is made in 8m", 12*time.Minute),
		&v1alpha1.MachineFailure{Claim: "arm64-q8x2k", Reason: "BootstrapTimeout", Message: "the runner was not online 15m after the machine was started", Node: "rack-b-2", Time: metav1.NewTime(s.now.Add(-4 * time.Minute))})

	for i := range 21 {
		s.job(40+i, v1alpha1.JobQueued, "linux-large", "AtMaximum", "RunnerPool linux-large has all 12 machines that spec.scaling.maxReplicas allows, and each has a job: raise it, or wait")
	}

	for i := range 2 {
		s.job(70+i, v1alpha1.JobQueued, "arm64", "MachinesFailing", "machines of RunnerPool arm64 fail before their runner is online: see status.lastFailure of the pool")
	}

	s.job(80, v1alpha1.JobQueued, "", "NoPool", "no RunnerPool in the namespace has the label gpu: add it to a pool's labels, or correct runs-on")

	for i := range 9 {
		s.job(10+i, v1alpha1.JobRunning, "linux-large", "", "")
		s.machine(10+i, "linux-large", v1alpha1.MachineClaimReady)
	}

	for i := range 6 {
		s.job(20+i, v1alpha1.JobCompleted, "linux-small", "", "")
	}

	for i := range 3 {
		s.machine(3+i, "linux-large", v1alpha1.MachineClaimBootstrapping)
	}

	for i := range 4 {
		s.machine(idleFrom+i, "linux-small", v1alpha1.MachineClaimReady)
	}

	s.hosts()
}

func (s *seeder) cluster(name string, nodes int, setAside func(int) string) {
	cluster := &v1alpha1.HypervisorCluster{}
	s.sample("hypervisorcluster-token.yaml", cluster)
	cluster.Name = name

	s.write(cluster, func() {
		cluster.Status = v1alpha1.HypervisorClusterStatus{
			Version: "9.2", ConnectedNodes: int32(nodes), Machines: int32(nodes * 5),
			Conditions: s.ready(metav1.ConditionTrue, "Connected", fmt.Sprintf("Proxmox VE 9.2, %d nodes online", nodes), 72*time.Hour),
		}

		for i := range nodes {
			conditions := s.ready(metav1.ConditionTrue, "Usable", "", 72*time.Hour)
			if why := setAside(i); why != "" {
				conditions = s.ready(metav1.ConditionFalse, "Excluded", why, 6*time.Minute)
			}

			amounts := func(cpu, gib int64) *v1alpha1.ResourceAmounts {
				return &v1alpha1.ResourceAmounts{CPU: cpu, Memory: *resource.NewQuantity(gib<<30, resource.BinarySI)}
			}

			cluster.Status.Nodes = append(cluster.Status.Nodes, v1alpha1.HypervisorNodeStatus{
				Name: fmt.Sprintf("%s-%d", name, i+1), Online: true, Conditions: conditions,
				Capacity: amounts(64, 256), Available: amounts(int64(6+11*i), int64(18+40*i)),
			})
		}
	})
}

func (s *seeder) pool(name string, most, busy, idle, starting, queued int32, conditions []metav1.Condition, failure *v1alpha1.MachineFailure) {
	pool := &v1alpha1.RunnerPool{}
	s.sample("runnerpool-on-demand.yaml", pool)
	pool.Name, pool.Spec.Scaling.MaxReplicas = name, most

	s.write(pool, func() {
		pool.Status = v1alpha1.RunnerPoolStatus{
			Conditions: conditions, Replicas: busy + idle + starting, ReadyReplicas: busy + idle, BusyReplicas: busy,
			DesiredReplicas: busy + idle + starting, QueuedJobs: queued, RunningJobs: busy, LastFailure: failure,
		}
		if failure != nil {
			pool.Status.FailedClaims = 3
		}
	})
}

func repository(i int) string {
	return []string{"acme/checkout", "acme/app", "acme/search", "acme/infrastructure"}[i%4]
}

func jobName(i int) string {
	return []string{"build", "unit tests", "integration (postgres)", "lint", "e2e (chromium)", "image"}[i%6]
}

func (s *seeder) job(i int, state v1alpha1.JobState, pool, reason, message string) {
	queued := s.now.Add(-time.Duration(30+i*17) * time.Second).Truncate(time.Second)
	at := func(after time.Duration) metav1.MicroTime { return metav1.NewMicroTime(queued.Add(after)) }
	job := &v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: fmt.Sprintf("github-actions-296794%05d", i)},
		Spec: v1alpha1.RunnerJobSpec{
			Platform: v1alpha1.WorkloadGitHubActions, ID: fmt.Sprintf("296794%05d", i), Name: jobName(i), Repository: repository(i),
			Workflow: "CI", URL: fmt.Sprintf("https://github.com/%s/actions/runs/10683749869/job/296794%05d", repository(i), i),
			Labels: []string{"self-hosted", "linux", "x64"}, State: state, QueuedAt: &metav1.Time{Time: queued}, ReceivedAt: new(at(700 * time.Millisecond)),
		},
	}
	timeline := []v1alpha1.JobEvent{
		{Moment: v1alpha1.MomentQueued, Time: at(0)}, {Moment: v1alpha1.MomentReceived, Time: at(700 * time.Millisecond)},
	}

	if pool != "" {
		timeline = append(timeline, v1alpha1.JobEvent{Moment: v1alpha1.MomentDecided, Time: at(800 * time.Millisecond), Message: "RunnerPool " + pool + " serves the job"})
	}

	conditions := s.ready(metav1.ConditionFalse, reason, message, time.Minute)

	if reason != "" {
		timeline = append(timeline, v1alpha1.JobEvent{Moment: v1alpha1.MomentWaiting, Time: at(900 * time.Millisecond), Message: reason + ": " + message})
	} else {
		claim := fmt.Sprintf("%s-m%03d", pool, i)
		job.Spec.RunnerName = claim + "-0a1b2c3d"
		job.Spec.StartedAt = &metav1.Time{Time: queued.Add(24 * time.Second)}
		conditions = s.ready(metav1.ConditionTrue, "Running", "runner "+job.Spec.RunnerName+" runs the job", time.Minute)
		timeline = append(timeline,
			v1alpha1.JobEvent{Moment: v1alpha1.MomentCloned, Time: at(3200 * time.Millisecond), Message: "MachineClaim " + claim + ": VM 100142 on node rack-a-2"},
			v1alpha1.JobEvent{Moment: v1alpha1.MomentBooted, Time: at(4100 * time.Millisecond), Message: "MachineClaim " + claim + ": VM 100142 on node rack-a-2"},
			v1alpha1.JobEvent{Moment: v1alpha1.MomentRegistered, Time: at(21 * time.Second), Message: "MachineClaim " + claim + ": runner " + job.Spec.RunnerName},
			v1alpha1.JobEvent{Moment: v1alpha1.MomentStarted, Time: at(24 * time.Second), Message: "runner " + job.Spec.RunnerName})
	}

	if state == v1alpha1.JobCompleted {
		job.Spec.CompletedAt = &metav1.Time{Time: queued.Add(290 * time.Second)}
		job.Spec.Conclusion = []string{"success", "success", "failure"}[i%3]
		timeline = append(timeline,
			v1alpha1.JobEvent{Moment: v1alpha1.MomentFinished, Time: at(290 * time.Second), Message: job.Spec.Conclusion},
			v1alpha1.JobEvent{Moment: v1alpha1.MomentDestroyed, Time: at(294 * time.Second), Message: "VM 100142 is gone: JobDone"})
	}

	s.write(job, func() {
		job.Status = v1alpha1.RunnerJobStatus{Pool: pool, Conditions: conditions, Timeline: timeline}
		if reason == "" {
			job.Status.Claim = fmt.Sprintf("%s-m%03d", pool, i)
		}

		if state == v1alpha1.JobCompleted {
			job.Status.Logs = job.Name + "-log"
			log := &v1alpha1.RunnerLog{
				ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: job.Status.Logs},
				Spec:       v1alpha1.RunnerLogSpec{Claim: job.Status.Claim, Text: logText},
			}
			if i == logInStore {
				log.Spec.Text, log.Spec.Stored = "", &v1alpha1.StoredLog{
					Endpoint: "https://s3.example.com", Region: "eu-1", Bucket: "logs", Key: "ci/linux-a.log", Bytes: 7,
				}
			}

			env.Create(s.t, log)
		}
	})
}

const logText = "√ Connected to GitHub\n\n2026-11-24 15:01:07Z: Listening for Jobs\n2026-11-24 15:01:10Z: Running job: unit tests\n" +
	"ok  \tacme/checkout/cart\t2.114s\nok  \tacme/checkout/payment\t8.031s\n--- FAIL: TestRefund (0.02s)\n    refund_test.go:41: " +
	"<script>alert(1)</script> want 12.50, got 12.49\nFAIL\tacme/checkout/refund\t0.310s\n2026-11-24 15:05:33Z: Job unit tests completed with result: Failed\n"

const (
	// idleFrom is the number from which machines have no job.
	idleFrom = 50
	// logInStore is the number of the job whose log is in a store.
	logInStore = 24
)

func (s *seeder) machine(i int, pool string, phase v1alpha1.MachineClaimPhase) {
	claim := &v1alpha1.MachineClaim{}
	s.sample("machineclaim.yaml", claim)
	claim.Name = fmt.Sprintf("%s-m%03d", pool, i)
	claim.Spec.RunnerPoolRef = &v1alpha1.LocalObjectReference{Name: pool}

	s.write(claim, func() {
		age := time.Duration(30+i*17) * time.Second
		claim.Status = v1alpha1.MachineClaimStatus{
			Phase: phase, VMRef: &v1alpha1.VMReference{HypervisorCluster: "rack-a", VMID: strconv.Itoa(100100 + i), Node: fmt.Sprintf("rack-a-%d", 1+i%4)},
			Conditions:    s.ready(metav1.ConditionFalse, "Booting", "the VM runs, its runner is not online yet", time.Minute),
			Times:         &v1alpha1.MachineTimes{Placed: s.ago(age), Cloned: s.ago(age - 3*time.Second), Started: s.ago(age - 4*time.Second)},
			BootstrapInfo: &v1alpha1.BootstrapInfo{RunnerName: claim.Name + "-0a1b2c3d", GuestPhase: "Started"},
			NetworkInfo:   &v1alpha1.NetworkInfo{IPAddress: fmt.Sprintf("192.0.2.%d", 10+i)},
		}

		switch {
		case phase == v1alpha1.MachineClaimReady && i >= idleFrom:
			claim.Status.Conditions = s.ready(metav1.ConditionTrue, "Idle", "the runner waits for a job", time.Minute)
			claim.Status.Times.Ready, claim.Status.BootstrapInfo.GuestPhase = s.ago(age-21*time.Second), "Registered"
		case phase == v1alpha1.MachineClaimReady:
			job := fmt.Sprintf("github-actions-296794%05d", i)
			claim.Status.BootstrapInfo.Job, claim.Status.BootstrapInfo.GuestPhase = job, "Running"
			claim.Status.Conditions = s.ready(metav1.ConditionTrue, "JobRunning", "job "+job, time.Minute)
			claim.Status.Times.Ready, claim.Status.Times.JobStarted = s.ago(age-21*time.Second), s.ago(age-24*time.Second)
		}
	})
}

func (s *seeder) hosts() {
	fleet := &infrav1.HostFleet{}
	s.sample("hostfleet.yaml", fleet)
	s.write(fleet, func() {
		fleet.Status = infrav1.HostFleetStatus{
			Hosts: 2, Converged: 1, Unreachable: 1,
			Conditions: s.ready(metav1.ConditionFalse, "HostsUnreachable", "1 of 2 hosts can't be reached: rack-2", 20*time.Minute),
		}
	})

	for i, name := range []string{"rack-1", "rack-2"} {
		host := &infrav1.LinuxMachine{}
		s.sample("linuxmachine.yaml", host)
		host.Name = name
		s.write(host, func() {
			host.Status.Phase = infrav1.HostReady
			host.Status.Conditions = s.ready(metav1.ConditionTrue, "Converged", "it has the fleet's configuration", time.Hour)

			if i == 1 {
				host.Status.ContactMessage = "dial 192.0.2.10:22: no route to host"
				host.Status.Conditions = s.ready(metav1.ConditionFalse, "Unreachable", host.Status.ContactMessage, time.Hour)
			}
		})
	}

	bridge := &bridgev1.DPFHCPBridge{}
	s.sample("dpfhcpbridge-production.yaml", bridge)
	s.write(bridge, func() {
		bridge.Status.Phase = bridgev1.PhaseProvisioning
		bridge.Status.Conditions = s.ready(metav1.ConditionFalse, "ControlPlaneReady", "the hosted control plane starts: etcd 2 of 3", 3*time.Minute)
	})
}

// manyJobs creates n queued jobs without a status.
func (s *seeder) manyJobs(n int) {
	group, ctx := errgroup.WithContext(s.t.Context())
	group.SetLimit(32)

	for i := range n {
		group.Go(func() error {
			job := &v1alpha1.RunnerJob{
				ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: fmt.Sprintf("many-%05d", i)},
				Spec: v1alpha1.RunnerJobSpec{
					Platform: v1alpha1.WorkloadGitHubActions, ID: fmt.Sprintf("77%05d", i), Name: jobName(i), Repository: repository(i),
					State: v1alpha1.JobQueued, QueuedAt: &metav1.Time{Time: s.now.Add(-time.Duration(i) * time.Second)},
				},
			}

			return env.Client.Create(ctx, job)
		})
	}

	must.Do(s.t, group.Wait())
}
