// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// backup is a backup of the objects of a namespace.
type backup struct {
	pools  []v1alpha1.RunnerPool
	claims []v1alpha1.MachineClaim
	jobs   []v1alpha1.RunnerJob
}

func takeBackup(f *fleet.Fleet) backup {
	f.T.Helper()

	var (
		pools v1alpha1.RunnerPoolList
		jobs  v1alpha1.RunnerJobList
	)

	for _, list := range []client.ObjectList{&pools, &jobs} {
		if err := f.Client.List(f.T.Context(), list, client.InNamespace(f.Namespace)); err != nil {
			f.T.Fatal(err)
		}
	}

	return backup{pools: pools.Items, claims: listClaims(f), jobs: jobs.Items}
}

func (b backup) objects() []client.Object {
	var out []client.Object

	for i := range b.pools {
		out = append(out, &b.pools[i])
	}

	for i := range b.claims {
		out = append(out, &b.claims[i])
	}

	for i := range b.jobs {
		out = append(out, &b.jobs[i])
	}

	return out
}

// restoreWithNewUIDs deletes the objects and creates them again without status and owner references, as Velero does. The
// first claim keeps its owner reference to the old UID of the pool, as with kubectl.
func restoreWithNewUIDs(f *fleet.Fleet, b backup) {
	f.T.Helper()

	for _, object := range b.objects() {
		stored, _ := object.DeepCopyObject().(client.Object)
		updateObject(f, stored, func() { stored.SetFinalizers(nil) })
		deleteObject(f, stored)
	}

	for i, object := range b.objects() {
		if i > len(b.pools) {
			object.SetOwnerReferences(nil)
		}

		object.SetResourceVersion("")
		object.SetUID("")
		object.SetFinalizers(nil)

		// The API server ignores the status of a created object.
		if err := f.Client.Create(f.T.Context(), object); err != nil {
			f.T.Fatal(err)
		}
	}
}

// emptyStatus removes the status of the objects, which keep their UIDs.
func emptyStatus(f *fleet.Fleet, b backup) {
	f.T.Helper()

	for _, object := range b.objects() {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":null}`))

		// An operator that runs may have deleted a claim since the backup was made.
		if err := client.IgnoreNotFound(f.Client.Status().Patch(f.T.Context(), object, patch)); err != nil {
			f.T.Fatal(err)
		}
	}
}

// watchNamesakes reports an error if two VMs have the same name at the same time.
func watchNamesakes(t *testing.T, f *fleet.Fleet) {
	t.Helper()

	t.Cleanup(f.PVE.OnCall(func(call pve.Call) {
		if call.Phase != pve.PhaseAfter {
			return
		}

		names := map[string]int{}

		for _, vm := range f.PVE.Snapshot().CreatedVMs() {
			if other, ok := names[vm.Name]; ok {
				t.Errorf("VMs %d and %d have the name %s", other, vm.VMID, vm.Name)
			}

			names[vm.Name] = vm.VMID
		}
	}))
}

// deletePoolAndClaims deletes the fleet's pool and its claims, as the garbage collector of Kubernetes does.
func deletePoolAndClaims(f *fleet.Fleet) {
	f.T.Helper()

	pool := f.NewPool(1)
	deleteObject(f, pool)
	eventuallyDeleted(f, pool)

	f.Eventually("the deletion of all claims", func() (bool, string) {
		claims := listClaims(f)
		for i := range claims {
			deleteObject(f, &claims[i])
		}

		return len(claims) == 0, f.Describe()
	})
}

// listVMIDs returns the IDs of the machines' VMs.
func listVMIDs(f *fleet.Fleet) []int {
	var out []int
	for _, vm := range f.PVE.Snapshot().CreatedVMs() {
		out = append(out, vm.VMID)
	}

	slices.Sort(out)

	return out
}

// TestRestoredObjects restores pools, claims and jobs from a backup of objects while jobs run. The jobs continue, no
// machine is created twice, and nothing is left.
func TestRestoredObjects(t *testing.T) {
	t.Parallel()

	const jobs = 5 // more than a sweep would delete at once without a person

	for name, test := range map[string]struct {
		restore func(*fleet.Fleet, backup)
		// isRunning is true if the operator runs during the restore.
		isRunning bool
	}{
		"with new UIDs":                              {restore: restoreWithNewUIDs},
		"with an emptied status":                     {restore: emptyStatus},
		"with an emptied status, to a live operator": {restore: emptyStatus, isRunning: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFastFleet(t, fleet.Options{})
			f.Populate(jobs)
			f.Start()
			f.EventuallyReady(f.NewPool(jobs))
			watchNamesakes(t, f)

			release := holdJobs(t, f, jobs)
			before := listVMIDs(f)

			f.Eventually("all claims being ready", func() (bool, string) {
				for _, claim := range listClaims(f) {
					if claim.Status.Phase != v1alpha1.MachineClaimReady {
						return false, f.Describe()
					}
				}

				return true, ""
			})

			if !test.isRunning {
				f.Stop()
			}

			test.restore(f, takeBackup(f))

			if !test.isRunning {
				f.Start()
			}

			if name != "with new UIDs" {
				f.Eventually("the claims having their machines again", func() (bool, string) {
					for _, claim := range listClaims(f) {
						if ref := claim.Status.VMRef; ref == nil || !slices.Contains(before, toInt(ref.VMID)) ||
							claim.Status.Phase != v1alpha1.MachineClaimReady {
							return false, f.Describe()
						}
					}

					return true, ""
				})
			}

			<-f.Clock.After(20 * time.Second) // several sweeps

			for _, id := range before {
				if !slices.Contains(listVMIDs(f), id) {
					t.Errorf("VM %d was deleted while its job ran", id)
				}
			}

			release()
			f.GitHub.WaitUntil("all jobs succeed", func(s control.State) bool {
				return !slices.ContainsFunc(s.Jobs, func(j control.Job) bool { return j.Conclusion != "success" })
			})

			if name == "with new UIDs" { // without their claims, so many machines of nobody would be kept for a person
				f.Eventually("the machines of the earlier claims being deleted", func() (bool, string) {
					return !slices.ContainsFunc(listVMIDs(f), func(id int) bool { return slices.Contains(before, id) }), f.Describe()
				})
			}

			deletePoolAndClaims(f)
			f.EventuallyClean()

			if n := f.CountClones(); name != "with new UIDs" && n != jobs {
				t.Errorf("%d machines were created, want %d", n, jobs)
			}
		})
	}
}

// TestRestoredClaimDelaysNoJob restores a claim with a new UID while the job of its earlier machine runs, so that the
// machine's name is taken until that job ends. A job that was queued meanwhile runs on a machine with another name.
func TestRestoredClaimDelaysNoJob(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.Populate(2)
	f.Start()
	f.EventuallyReady(f.NewPool(2))

	release := holdJobs(t, f, 1)
	earlier := listVMIDs(f)

	f.Stop()
	restoreWithNewUIDs(f, takeBackup(f))
	queueJobs(f, 1) // before the start: the pool counts the restored claim for this job
	f.Start()

	f.Eventually("the queued job running elsewhere", func() (bool, string) {
		jobs := f.GitHub.State().Jobs

		return len(jobs) == 2 && jobs[0].Status == "in_progress" && jobs[1].Conclusion == "success", f.Describe()
	})

	if !slices.Contains(listVMIDs(f), earlier[0]) {
		t.Errorf("VM %d was deleted while its job ran", earlier[0])
	}

	release()
	f.EventuallyJobsDone(2)
	deletePoolAndClaims(f)
	f.EventuallyClean()
}

func toInt(text string) int {
	n, _ := strconv.Atoi(text)

	return n
}

// TestRestoredObjectsOfEveryPlatform empties the status of all objects while a job runs on each platform. The machine is
// found again, gets no other job, and the job succeeds.
func TestRestoredObjectsOfEveryPlatform(t *testing.T) {
	t.Parallel()

	for name, start := range listSizedPlatforms() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f, site := startPlatformFleet(t, name, start)
			command, release := newHeldCommand(t)
			site.queue(control.JobSpec{Labels: []string{"os=linux"}, Command: command})
			eventuallyPool(f, "the job running", func(s v1alpha1.RunnerPoolStatus) bool { return s.BusyReplicas >= 1 })

			f.Stop()
			emptyStatus(f, takeBackup(f))
			f.Start()
			eventuallyPool(f, "the job running again", func(s v1alpha1.RunnerPoolStatus) bool { return s.BusyReplicas >= 1 })

			<-f.Clock.After(17 * time.Second) // a machine without a job would end after 15 seconds

			release()
			f.Eventually("the job succeeding", func() (bool, string) {
				jobs := site.state().Jobs

				return len(jobs) == 1 && jobs[0].Conclusion == "success", f.Describe()
			})

			if n := f.CountClones(); n != 1 {
				t.Errorf("%d machines were created for one job", n)
			}

			deletePoolAndClaims(f)
		})
	}
}

// TestRestoredHypervisor restores VMs from a backup of the hypervisor that was taken while a job ran: a VM whose claim no
// longer exists, at its own ID and at another one, and a copy of the VM of a claim that exists. The operator deletes
// the first, leaves the copies alone, which have the record of another ID, and creates no machine with a taken ID.
func TestRestoredHypervisor(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.Populate(1)
	f.Start()
	f.EventuallyReady(f.NewPool(1))

	release := holdJobs(t, f, 1)
	oldID := listVMIDs(f)[0]
	old, _ := findVM(f, oldID)
	oldClaim := listClaims(f)[0]

	release()
	f.EventuallyJobsDone(1)
	f.EventuallyClean()

	release = holdJobs(t, f, 1)
	liveID := listVMIDs(f)[0]
	live, _ := findVM(f, liveID)

	copies := []int{liveID + 10, liveID + 11, liveID + 1}
	restoreVM(f, copies[0], old.Name, old.Config["description"])
	restoreVM(f, copies[1], live.Name, live.Config["description"])
	restoreVM(f, copies[2], old.Name, old.Config["description"])

	if oldID != liveID {
		restoreVM(f, oldID, old.Name, old.Config["description"])
		f.Eventually("the deletion of the VM without a claim", func() (bool, string) {
			return !slices.Contains(listVMIDs(f), oldID), f.Describe()
		})
	}

	if status := requestCredential(f, &oldClaim); status != http.StatusGone && status != http.StatusNotFound {
		t.Errorf("the claim code of the restored VM is answered with status %d", status)
	}

	release()
	f.EventuallyJobsDone(2)

	queueJobs(f, 1)
	f.EventuallyJobsDone(3)
	deletePoolAndClaims(f)
	<-f.Clock.After(20 * time.Second) // several sweeps

	for _, id := range copies {
		if _, ok := findVM(f, id); !ok {
			t.Errorf("VM %d was deleted, although it has the record of another ID", id)
		}
	}
}

// requestCredential requests a credential with the claim's code, and returns the HTTP status.
func requestCredential(f *fleet.Fleet, claim *v1alpha1.MachineClaim) int {
	f.T.Helper()

	request, err := http.NewRequestWithContext(f.T.Context(), http.MethodPost, f.Front.URL+vmspec.CredentialPath(claim), http.NoBody)
	if err != nil {
		f.T.Fatal(err)
	}

	request.Header.Set("Authorization", "Bearer "+vmspec.ClaimCode(f.ReportKey, claim.Namespace, claim.Name, claim.UID))

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		f.T.Fatal(err)
	}

	if err := response.Body.Close(); err != nil {
		f.T.Error(err)
	}

	return response.StatusCode
}

// TestOlderEtcd restores an older state of etcd: a claim that had no machine yet is there without the status that it had
// when its machine ran, a finished claim is back, and the claim of a running machine is gone.
func TestOlderEtcd(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.Populate(3)
	f.Start()
	f.EventuallyReady(f.NewPool(3))

	release := holdJobs(t, f, 1)
	finished := listClaims(f)[0]

	f.Eventually("the claim being ready", func() (bool, string) {
		finished = listClaims(f)[0]

		return finished.Status.Phase == v1alpha1.MachineClaimReady, f.Describe()
	})
	release()
	f.EventuallyJobsDone(1)
	f.EventuallyClean()

	release = holdJobs(t, f, 2)
	f.Stop()

	claims := listClaims(f)
	emptyStatus(f, backup{claims: claims[:1]})

	lost := claims[1]
	updateObject(f, &lost, func() { lost.Finalizers = nil })
	deleteObject(f, &lost)

	status := *finished.Status.DeepCopy()
	finished.ObjectMeta = metav1.ObjectMeta{
		Namespace: finished.Namespace, Name: finished.Name, Labels: finished.Labels,
		OwnerReferences: finished.OwnerReferences, Finalizers: finished.Finalizers,
	}
	f.Create(&finished)

	finished.Status = status
	if err := f.Client.Status().Update(t.Context(), &finished); err != nil {
		t.Fatal(err)
	}

	f.Start()
	eventuallyDeleted(f, &finished)

	if n := len(listRunning(f)); n < 2 {
		t.Errorf("%d machines run, want those of both jobs", n)
	}

	release()
	f.EventuallyJobsDone(3)
	deletePoolAndClaims(f)
	f.EventuallyClean()
}

// TestDeletedInAnyOrder deletes everything in a namespace in different orders while a job runs and another machine is
// idle. The job ends, the runners are removed although their credentials are gone, and nothing is left.
func TestDeletedInAnyOrder(t *testing.T) {
	t.Parallel()

	for name, order := range map[string][]string{
		"the Secret first":             {"secret", "template", "pool", "claims"},
		"the Secret before the claims": {"pool", "secret", "claims", "template"},
		"the Secret last":              {"claims", "pool", "template", "secret"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFastFleet(t, fleet.Options{})
			f.CreateCluster(f.NewCluster())

			template, pool := f.NewTemplate(), f.NewPool(2)
			pool.Spec.Scaling.MinReplicas = 2
			f.Create(template)
			f.Create(pool)
			f.Start()
			f.EventuallyReady(pool)

			release := holdJobs(t, f, 1)

			f.Eventually("two ready claims", func() (bool, string) {
				claims := listClaims(f)

				return len(claims) == 2 && !slices.ContainsFunc(claims, func(claim v1alpha1.MachineClaim) bool {
					return claim.Status.Phase != v1alpha1.MachineClaimReady
				}), f.Describe()
			})

			var secrets corev1.SecretList
			if err := f.Client.List(t.Context(), &secrets, client.InNamespace(f.Namespace)); err != nil {
				t.Fatal(err)
			}

			for _, kind := range order {
				switch kind {
				case "secret":
					for i := range secrets.Items {
						if secrets.Items[i].Name == template.Spec.Bootstrap.Config.GitHub.Credentials.SecretKeyRef.Name {
							deleteObject(f, &secrets.Items[i])
						}
					}
				case "template":
					deleteObject(f, template)
				case "pool":
					deleteObject(f, pool)
				default:
					for _, claim := range listClaims(f) {
						deleteObject(f, &claim)
					}
				}

				<-f.Clock.After(20 * time.Second) // the operator reads the Secrets again
			}

			if n := len(listRunning(f)); n < 1 {
				t.Error("the machine of the job was deleted while the job ran")
			}

			release()
			f.GitHub.WaitUntil("the job succeeds", func(s control.State) bool { return s.Jobs[0].Conclusion == "success" })
			deletePoolAndClaims(f)
			f.EventuallyClean()
			eventuallyDeleted(f, template)
		})
	}
}

// TestUseOfClaimCodeIsLost restores a claim from the time before its machine used its claim code, while the runner is
// connected. The code gets no second credential.
func TestUseOfClaimCodeIsLost(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	template := f.NewTemplate()
	template.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback
	createAndStart(f, template, f.NewPool(1))
	f.EventuallyReady(f.NewPool(1))

	release := holdJobs(t, f, 1)
	claim := listClaims(f)[0]
	older := client.RawPatch("application/merge-patch+json",
		[]byte(`{"status":{"bootstrapInfo":{"runnerId":null,"handover":{"usedAt":null,"givenAt":null}}}}`))

	if err := f.Client.Status().Patch(t.Context(), &claim, older); err != nil {
		t.Fatal(err)
	}

	<-f.Clock.After(time.Minute) // the list of runners from before the registration is too old

	if status := requestCredential(f, &claim); status != http.StatusConflict {
		t.Errorf("the second use of the claim code is answered with status %d, want %d", status, http.StatusConflict)
	}

	if made := f.GitHub.State().Registered; made != 1 {
		t.Errorf("%d credentials were created", made)
	}

	release()
	f.EventuallyJobsDone(1)
	f.EventuallyClean()
}
