// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/fixes"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// loseAddresses removes the status and the annotation with the addresses of all claims.
func loseAddresses(f *fleet.Fleet) {
	f.T.Helper()

	b := backup{claims: listClaims(f)}
	for i := range b.claims {
		claim := b.claims[i].DeepCopy()
		updateObject(f, claim, func() { delete(claim.Annotations, v1alpha1.AnnotationAddresses) })
	}

	emptyStatus(f, b)
}

// loseRecords removes the addresses from the ownership records of all VMs, as those of an earlier version are.
func loseRecords(f *fleet.Fleet) {
	f.T.Helper()

	for _, vm := range f.PVE.Snapshot().CreatedVMs() {
		record, err := proxmox.ParseRecord(vm.Config["description"])
		if err != nil {
			f.T.Fatal(err)
		}

		record.Addresses, record.AddressNetwork = "", ""

		description, err := record.Encode()
		if err != nil {
			f.T.Fatal(err)
		}

		pvetest.LogIn(f.T, f.PVE).Do(http.MethodPost, fmt.Sprintf("/nodes/%s/qemu/%d/config", vm.Node, vm.VMID),
			url.Values{"description": {description}})
	}
}

// bootedAddresses records with which addresses the guests of machines boot, by the names of the machines.
type bootedAddresses struct {
	started chan string
	byName  map[string]string
}

func (b *bootedAddresses) options() fleet.Options {
	b.started, b.byName = make(chan string, 64), map[string]string{}

	return fleet.Options{Guest: func(vm pve.GuestVM, run func(pve.GuestVM)) {
		b.started <- vm.Name + " " + findAddress(string(vm.Drive["network-config"]))

		run(vm)
	}}
}

// findAddress returns the first address in network data.
func findAddress(data string) string {
	for _, word := range strings.FieldsFunc(data, func(r rune) bool { return strings.ContainsRune(" \n[]\"',", r) }) {
		if strings.HasPrefix(word, "10.") && strings.Contains(word, "/24") {
			return word
		}
	}

	return ""
}

// read reads what has booted, and fails the test if an address was used twice.
func (b *bootedAddresses) read(f *fleet.Fleet) {
	f.T.Helper()

	for {
		select {
		case text := <-b.started:
			name, address, _ := strings.Cut(text, " ")
			b.byName[name] = address
		default:
			return
		}
	}
}

// TestRestoredAddresses loses the status and the annotation of all claims while their jobs run. The addresses are read
// back from the VMs, and a new machine gets another address.
func TestRestoredAddresses(t *testing.T) {
	t.Parallel()

	for name, isOld := range map[string]bool{"from the record of the VM": false, "from the guest's agent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			const jobs = 3

			booted := &bootedAddresses{}
			f := newFastFleet(t, booted.options())
			f.Networking = true

			// The guests of the simulator report addresses of this range, which follow from the IDs of their VMs.
			createAndStart(f, newPooledTemplate(f, newAddressPool("10.1.134.160-10.1.134.190")), f.NewPool(jobs+1))
			f.EventuallyReady(f.NewPool(jobs + 1))

			// The first address is free, so an allocation that does not look gives the wrong ones.
			end := holdJobs(t, f, 1)
			release := holdJobs(t, f, jobs)

			end()
			f.Eventually("one machine being deleted", func() (bool, string) { return len(listAddresses(f)) == jobs, f.Describe() })
			f.Stop()
			booted.read(f)
			loseAddresses(f)

			if isOld {
				loseRecords(f)

				for _, vm := range listRunning(f) {
					booted.byName[vm.Name] = fmt.Sprintf("10.1.134.%d/24", vm.VMID-100000+160)
				}
			}

			f.Start()
			f.Eventually("the claims having the addresses of their machines", func() (bool, string) {
				found := listAddresses(f)

				for _, vm := range listRunning(f) {
					if want := booted.byName[vm.Name]; found[vm.Name] != want {
						return false, fmt.Sprintf("%s was booted with %s: %v\n%s", vm.Name, want, found, f.Describe())
					}
				}

				return true, ""
			})

			before := listAddresses(f)

			queueJobs(f, 1)
			f.Eventually("another machine", func() (bool, string) {
				booted.read(f)

				return len(booted.byName) > jobs, f.Describe()
			})

			for machine, address := range booted.byName {
				for other, used := range before {
					if machine != other && address == used {
						t.Errorf("%s was booted with %s of %s", machine, address, other)
					}
				}
			}

			release()
		})
	}
}

// TestUnknownAddressesOfMachine loses the addresses of a machine everywhere. The claim reports this and names the
// command that records them, the pool allocates nothing until then, and the job continues.
func TestUnknownAddressesOfMachine(t *testing.T) {
	t.Parallel()

	booted := &bootedAddresses{}
	f := newFastFleet(t, booted.options())
	f.Networking = true

	createAndStart(f, newPooledTemplate(f, newAddressPool("10.9.0.10-10.9.0.29")), f.NewPool(2))
	f.EventuallyReady(f.NewPool(2))

	release := holdJobs(t, f, 1)
	claim := listClaims(f)[0]

	f.Stop()
	booted.read(f)
	loseAddresses(f)
	loseRecords(f)
	f.Start()

	message := f.EventuallyCondition(&claim, v1alpha1.ConditionPlaced, metav1.ConditionFalse, v1alpha1.ReasonAddressesUnknown)

	page, err := os.ReadFile("../../docs/operate/restore.md")
	if err != nil {
		t.Fatal(err)
	}

	command := regexp.MustCompile(`(?m)^kubectl annotate machineclaim .*$`).FindString(string(page))
	checkContains(t, message, strings.NewReplacer("CLAIM", claim.Name, "NAMESPACE", f.Namespace).Replace(command))

	waits := f.NewClaim("waits")
	f.Create(waits)
	f.EventuallyCondition(waits, v1alpha1.ConditionAddressAllocated, metav1.ConditionFalse, "AddressesNotRead")

	fixes.Kubectl(t, f.Env, message, "ADDRESS/PREFIXLENGTH", booted.byName[claim.Name])
	f.EventuallyCondition(&claim, v1alpha1.ConditionPlaced, metav1.ConditionTrue, "")
	f.EventuallyCondition(waits, v1alpha1.ConditionAddressAllocated, metav1.ConditionTrue, "")

	if got := getAddresses(f, &claim); !slices.Equal(got, []string{booted.byName[claim.Name]}) || slices.Equal(got, getAddresses(f, waits)) {
		t.Errorf("the claim has %v, the other one %v, and the machine was booted with %s", got, getAddresses(f, waits), booted.byName[claim.Name])
	}

	release()
	f.EventuallyJobsDone(1)
}

// TestRestoredAddressDelaysNoJob restores a claim without a machine whose status has the address of a machine that runs, and
// whose claim is lost. The restored claim gets another address, and runs a job meanwhile.
func TestRestoredAddressDelaysNoJob(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.Networking = true

	createAndStart(f, newPooledTemplate(f, newAddressPool("10.9.0.10-10.9.0.12")), f.NewPool(2))
	f.EventuallyReady(f.NewPool(2))

	release := holdJobs(t, f, 1)
	lost := listClaims(f)[0]

	f.Stop()

	restored := lost.DeepCopy()
	restored.ObjectMeta = metav1.ObjectMeta{
		Namespace: lost.Namespace, Name: "restored", Labels: lost.Labels, OwnerReferences: lost.OwnerReferences,
	}

	updateObject(f, &lost, func() { lost.Finalizers = nil })
	deleteObject(f, &lost)
	f.Create(restored)

	restored.Status = v1alpha1.MachineClaimStatus{
		NetworkInfo: &v1alpha1.NetworkInfo{
			Addresses: lost.Status.NetworkInfo.Addresses, AddressNetwork: lost.Status.NetworkInfo.AddressNetwork,
		},
		Conditions: slices.DeleteFunc(lost.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type != v1alpha1.ConditionAddressAllocated
		}),
	}
	if err := f.Client.Status().Update(t.Context(), restored); err != nil {
		t.Fatal(err)
	}

	queueJobs(f, 1) // before the start: the pool counts the restored claim for this job
	f.Start()

	f.Eventually("the queued job running with another address", func() (bool, string) {
		jobs := f.GitHub.State().Jobs

		return len(jobs) == 2 && jobs[0].Status == "in_progress" && jobs[1].Conclusion == "success", f.Describe()
	})

	release()
	f.EventuallyJobsDone(2)
}

// TestAddressOfMachineWithoutClaim restores a backup without the claim of a machine that runs. No other machine is
// created with its address while it exists.
func TestAddressOfMachineWithoutClaim(t *testing.T) {
	t.Parallel()

	booted := &bootedAddresses{}
	f := newFastFleet(t, booted.options())
	f.Networking = true

	createAndStart(f, newPooledTemplate(f, newAddressPool("10.9.0.10-10.9.0.10")), f.NewPool(2))
	f.EventuallyReady(f.NewPool(2))

	release := holdJobs(t, f, 1)
	id := listVMIDs(f)[0]

	f.Stop()

	lost := listClaims(f)[0]
	updateObject(f, &lost, func() { lost.Finalizers = nil })
	deleteObject(f, &lost)

	f.Start()

	next := f.NewClaim("next")
	f.Create(next)
	f.EventuallyCondition(next, v1alpha1.ConditionAddressAllocated, metav1.ConditionFalse, "PoolExhausted")
	<-f.Clock.After(10 * time.Second) // several sweeps

	if got := listVMIDs(f); !slices.Equal(got, []int{id}) {
		t.Errorf("VMs %v exist, want %d alone", got, id)
	}

	release()
	f.EventuallyJobsDone(1)
	f.EventuallyCondition(next, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "")
}
