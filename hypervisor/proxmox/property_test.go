// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// briefLives is the number of lifecycles that a property test runs outside of `make soak`.
const briefLives = 3

// propertyModel returns a cluster with several storages and bridges.
func propertyModel() pve.Model {
	m := fastModel().WithSharedStorage()
	m.Bridges = []string{"vmbr0", "vmbr1", "vmbr2"}

	return m
}

// runLife creates a machine, calls look with its state, and deletes the machine.
func runLife(t testing.TB, s *pve.Server, p hypervisor.Provider, sp hypervisor.MachineSpec, look func(pve.VMState) string) string {
	t.Helper()

	made, sp := create(t, p, sp)
	vm, ok := s.Snapshot().VM(made.ID)
	problem := "it is not there"

	if ok {
		problem = look(vm)
	}

	remove(t, p, sp)

	if left := s.Snapshot(); problem == "" && len(left.CreatedVMs())+len(left.ISOs()) > 0 {
		problem = fmt.Sprintf("left behind: %+v %+v", left.CreatedVMs(), left.ISOs())
	}

	return problem
}

// Feature: hyperfleet-operator, Property 19: Proxmox API Integration
func TestProperty19ProxmoxAPIIntegration(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, propertyModel())
	p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) { c.DefaultStorage = pve.DefaultSharedID })
	n := 0

	property.Check(t, "machines are clones with a cloud-init drive, made over the API", property.Options{Brief: briefLives}, prop.ForAll(
		func(linked bool, cpu int, memoryMiB int64) string {
			n++
			sp := newSpec(n)
			sp.Shape.Linked, sp.Shape.CPU, sp.Shape.Memory = linked, cpu, memoryMiB<<20

			s.ResetCalls()

			problem := runLife(t, s, p, sp, func(vm pve.VMState) string {
				// The disk of a linked clone refers to the template's disk.
				isLinked := strings.Contains(vm.Config["scsi0"], "base-900")
				iso := vm.Config["ide2"]

				switch {
				case isLinked != linked:
					return fmt.Sprintf("linked is %t: %s", isLinked, vm.Config["scsi0"])
				case !strings.Contains(iso, sp.Owner.UID+".iso,media=cdrom"):
					return "cloud-init drive is " + iso
				case vm.Config["cores"] != strconv.Itoa(cpu) || vm.Config["memory"] != strconv.FormatInt(memoryMiB, 10):
					return fmt.Sprintf("resources are %s, %s", vm.Config["cores"], vm.Config["memory"])
				}

				return ""
			})
			if problem != "" {
				return problem
			}

			if clones := countCalls(s, http.MethodPost, "/clone"); clones != 1 {
				return fmt.Sprintf("%d clones", clones)
			}

			return ""
		}, gen.Bool(), gen.IntRange(1, 32), gen.Int64Range(64, 16384)))
}

// Feature: hyperfleet-operator, Property 20: VM Tagging and Metadata
func TestProperty20TaggingAndMetadata(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, propertyModel())
	text := gen.AnyString()
	n := 0

	property.Check(t, "records and tags of any owner", property.Options{}, prop.ForAll(
		func(namespace, name, pool, key, value string) string {
			owner := newSpec(1).Owner
			owner.Namespace, owner.Name, owner.Pool = namespace, name, pool

			// The computer of the test may be in UTC.
			now := time.Now().In(time.FixedZone("", 2*60*60))

			notes, err := proxmox.NewRecord(operatorUID, "lab", 100001, owner, now).Encode()
			if err != nil {
				return err.Error()
			}

			return checkMarks(notes, proxmox.Tags(operatorUID, "lab", pool, map[string]string{key: value}), owner, 100001)
		}, gen.Identifier(), text, gen.AlphaString(), text, text)) //nolint:gocritic // generators are not options

	clk := conformance.FastClock(t, conformance.Speed)

	property.Check(t, "each machine has its complete ownership record and valid tags", property.Options{Brief: briefLives}, prop.ForAll(
		func(namespace, name, pool, key, value string) string {
			n++
			p := connect(t, s, func(c *hypervisor.Config, o *hypervisor.Options) {
				c.Tags, o.Clock = map[string]string{key: value}, clk
			})
			sp := newSpec(n)
			sp.Owner.Namespace, sp.Owner.Name, sp.Owner.Pool = namespace, name, pool
			before := clk.Now().Add(-time.Second)

			return runLife(t, s, p, sp, func(vm pve.VMState) string {
				notes, _ := getDescription(vm)

				r, err := proxmox.ParseRecord(notes)
				if err == nil && (r.CreatedAt.Before(before.Truncate(time.Second)) || r.CreatedAt.After(clk.Now())) {
					return fmt.Sprintf("record is %+v", r)
				}

				return checkMarks(notes, vm.Tags, sp.Owner, vm.VMID)
			})
		}, gen.Identifier(), text, gen.AlphaString(), text, text)) //nolint:gocritic // generators are not options
}

var (
	// tagPattern matches a valid tag in lower case.
	tagPattern = regexp.MustCompile(`^[a-z0-9_][a-z0-9_\-+.]*$`)
	timeInUTC  = regexp.MustCompile(`"createdAt":"[0-9T:-]+Z"`)
)

// checkMarks returns what is wrong with a machine's notes and tags, or "".
func checkMarks(notes, tags string, owner hypervisor.Owner, id int) string {
	r, err := proxmox.ParseRecord(notes)
	if err != nil {
		return err.Error()
	}

	if r.Owner() != owner || r.OperatorUID != operatorUID || r.Cluster != "lab" || r.VMID != id {
		return fmt.Sprintf("record is %+v", r)
	}

	if !timeInUTC.MatchString(notes) {
		return "createdAt is not in UTC: " + notes
	}

	if strings.Contains(";"+tags, ";hf-pool-") != (owner.Pool != "") {
		return "the tag of the pool is missing: " + tags
	}

	for x := range strings.SplitSeq(tags, ";") {
		if !tagPattern.MatchString(x) {
			return "tag " + x
		}
	}

	if !strings.Contains(";"+tags+";", ";"+proxmox.OperatorTag(operatorUID, "lab")+";") {
		return "tags are " + tags
	}

	return ""
}

// Feature: hyperfleet-operator, Property 21: Storage and Network Configuration
func TestProperty21StorageAndNetwork(t *testing.T) {
	t.Parallel()

	storages := gen.OneConstOf("", "local-lvm", pve.DefaultSharedID)
	bridges := gen.OneConstOf("", "vmbr0", "vmbr1", "vmbr2")
	vlans := gen.OneGenOf(gen.Const(0), gen.IntRange(1, 4094)) // most machines have no VLAN

	property.Check(t, "storages and networks are chosen as the cluster and the template say", property.Options{}, prop.ForAll(
		func(defaultStorage, storage, defaultBridge, bridge string, vlan int, linked bool) string {
			c := hypervisor.Config{DefaultStorage: defaultStorage, DefaultNetwork: defaultBridge}
			shape := newSpec(1).Shape
			shape.Linked, shape.Storage, shape.Bridge, shape.VLAN = linked, storage, bridge, vlan

			gotStorage, gotNet := proxmox.SelectStorageAndNet(c, shape, pve.DefaultSharedID, "virtio=BC:24:11:00:00:01,bridge=vmbr0")

			return checkPlacement(c, shape, gotStorage+":vm-1-disk-0", gotNet)
		}, storages, storages, bridges, bridges, vlans, gen.Bool())) //nolint:gocritic // generators are not options

	s := pvetest.New(t, propertyModel())
	clk := conformance.FastClock(t, conformance.Speed)
	n := 0

	live := func(defaultStorage, storage, defaultBridge, bridge string, vlan int, linked bool) string {
		n++

		var cluster hypervisor.Config

		p := connect(t, s, func(c *hypervisor.Config, o *hypervisor.Options) {
			c.DefaultStorage, c.DefaultNetwork, c.ISOStorage, o.Clock = defaultStorage, defaultBridge, "local", clk
			cluster = *c
		})
		sp := newSpec(n)
		sp.Shape.Linked, sp.Shape.Storage, sp.Shape.Bridge, sp.Shape.VLAN = linked, storage, bridge, vlan

		return runLife(t, s, p, sp, func(vm pve.VMState) string {
			if !strings.HasPrefix(vm.Config["ide2"], "local:iso/") {
				return "cloud-init ISO is " + vm.Config["ide2"]
			}

			return checkPlacement(cluster, sp.Shape, vm.Config["scsi0"], vm.Config["net0"])
		})
	}

	// A few random lives do not always include these.
	for name, problem := range map[string]string{
		"cluster":  live("local-lvm", "", "vmbr1", "", 0, false),
		"template": live(pve.DefaultSharedID, "local-lvm", "vmbr1", "vmbr2", 7, false),
		"linked":   live("local-lvm", "local-lvm", "", "", 0, true),
	} {
		if problem != "" {
			t.Errorf("storage and network of the %s: %s", name, problem)
		}
	}

	property.Check(t, "disks, cloud-init ISOs and network are where the cluster and the template say", property.Options{Brief: briefLives},
		prop.ForAll(live, storages, storages, bridges, bridges, vlans, gen.Bool())) //nolint:gocritic // generators are not options
}

// checkPlacement returns what is wrong with a machine's disk and network, or "". The template is on the
// shared storage and on vmbr0.
func checkPlacement(c hypervisor.Config, shape hypervisor.Shape, disk, net string) string {
	wantStorage := cmp.Or(shape.Storage, c.DefaultStorage, pve.DefaultSharedID)
	if shape.Linked {
		wantStorage = pve.DefaultSharedID
	}

	wantNet := ",bridge=" + cmp.Or(shape.Bridge, c.DefaultNetwork, "vmbr0")
	if shape.VLAN > 0 {
		wantNet += fmt.Sprintf(",tag=%d", shape.VLAN)
	}

	switch {
	case !strings.HasPrefix(disk, wantStorage+":"):
		return fmt.Sprintf("disk is %s, not on %s", disk, wantStorage)
	case !strings.HasSuffix(net, wantNet):
		return fmt.Sprintf("network is %s, not %s", net, wantNet)
	}

	return ""
}

// newForeignRecord returns the record of claim n on machine id with one change.
func newForeignRecord(what string, id, n int, noise string) string {
	sp := newSpec(n)
	record := map[string]any{
		"managedBy": "hyperfleet", "cluster": "lab", "vmid": id, "runnerPool": sp.Owner.Pool,
		"machineClaim": map[string]any{"namespace": sp.Owner.Namespace, "name": sp.Owner.Name, "uid": sp.Owner.UID},
		"createdAt":    time.Now().UTC().Format(time.RFC3339), "operatorUID": operatorUID,
	}

	switch what {
	case "operator":
		record["operatorUID"] = "x" + noise
	case "cluster":
		record["cluster"] = "x" + noise
	case "id":
		record["vmid"] = id + 1 + len(noise)
	case "claim":
		record["machineClaim"] = map[string]any{"namespace": "ci", "name": "other", "uid": "x" + noise}
	case "product":
		record["managedBy"] = "x" + noise
	case "record":
		return noise
	}

	raw, err := json.Marshal(record)
	if err != nil {
		panic(err)
	}

	return string(raw)
}

// Feature: hyperfleet-operator, Property 26: VM Ownership and Isolation
func TestProperty26OwnershipAndIsolation(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, propertyModel())
	clk := conformance.FastClock(t, conformance.Speed)
	ids := func(c *hypervisor.Config, o *hypervisor.Options) { c.IDMin, c.IDMax, o.Clock = 100, 199, clk }
	p := connect(t, s, ids)
	admin := newRootClient(t, s)
	changes := gen.OneConstOf("operator", "cluster", "id", "claim", "product", "record")
	yes := gen.Bool()
	n := 0
	pure := connect(t, s)

	property.Check(t, "only a record that is right in every respect makes a machine ours", property.Options{}, prop.ForAll(
		func(what, noise string) string {
			if proxmox.IsOwn(pure, 101, newSpec(1).Owner, newForeignRecord(what, 101, 1, noise)) {
				return "it is treated as ours"
			}

			if !proxmox.IsOwn(pure, 101, newSpec(1).Owner, newForeignRecord("", 101, 1, noise)) {
				return "ours is not"
			}

			return ""
		}, changes, gen.AlphaString()))

	property.Check(t, "a machine that is not ours in every respect is never changed", property.Options{Brief: 2 * briefLives}, prop.ForAll(
		func(what, noise string, running, tagged, fresh bool) string {
			n++

			options := map[string]any{"description": newForeignRecord(what, 101, n, noise)}
			if tagged {
				options["tags"] = "hyperfleet;" + proxmox.OperatorTag(operatorUID, "lab")
			}

			if err := admin.Put(t.Context(), "/nodes/pve2/qemu/101/config", options, nil); err != nil {
				return err.Error()
			}

			if running {
				var upid string
				if err := admin.Post(t.Context(), "/nodes/pve2/qemu/101/status/start", nil, &upid); err != nil {
					return err.Error()
				}

				waitForTask(t, s, upid)
			}

			provider := hypervisor.Provider(p)
			if fresh {
				provider = connect(t, s, ids)
			}

			before, _ := s.Snapshot().VM(101)
			problem := attack(t, provider, n)
			after, _ := s.Snapshot().VM(101)

			s.PowerOff(101)

			if problem == "" && fmt.Sprint(before) != fmt.Sprint(after) {
				problem = fmt.Sprintf("it was changed:\n%+v\n%+v", before, after)
			}

			return problem
		},
		changes, gen.AlphaString(), yes, yes, yes)) //nolint:gocritic // generators are not options
}

// attack calls all methods of the provider on machine 101 as claim n.
func attack(t testing.TB, p hypervisor.Provider, n int) string {
	t.Helper()

	sp := newSpec(n)
	sp.ID, sp.Node = 101, "pve2"
	ref := newRef(sp)

	for range 3 {
		if _, err := p.Get(t.Context(), ref); !hypervisor.Is(err, hypervisor.NotFound) {
			return fmt.Sprintf("get: %v", err)
		}

		if _, err := p.Start(t.Context(), sp, seed); !hypervisor.Is(err, hypervisor.IDTaken) {
			return fmt.Sprintf("create: %v", err)
		}

		if err := p.Delete(t.Context(), ref); !hypervisor.Is(err, hypervisor.NotOwned) {
			return fmt.Sprintf("delete: %v", err)
		}
	}

	all, err := p.List(t.Context())
	if err != nil {
		return err.Error()
	}

	for _, m := range all {
		// A record with another claim's UID belongs to this operator, but not to this claim.
		if m.ID == 101 && m.Owner.UID == sp.Owner.UID {
			return fmt.Sprintf("listed: %+v", m)
		}
	}

	return ""
}
