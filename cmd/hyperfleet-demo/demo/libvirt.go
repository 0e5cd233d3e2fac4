// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	golibvirt "github.com/digitalocean/go-libvirt"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	testlibvirt "github.com/hyperfleet/hyperfleet/test/libvirt"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

// Values of --accel, and the types of libvirt's domains for them.
const (
	accelTCG, accelKVM            = "tcg", "kvm"
	domainTypeQEMU, domainTypeKVM = "qemu", "kvm"
)

// libvirtHosts are libvirtd processes of this run, each with directories of its own, as the hosts of one cluster.
type libvirtHosts struct {
	hosts []*testlibvirt.Host
	// ports of the operator, which are chosen after the start of the hosts.
	ports *ports
}

// libvirtSettings are the settings of the hosts for the objects.
type libvirtSettings struct {
	hosts      []v1alpha1.LibvirtHost
	domainType string
}

// startLibvirt starts the hosts. Each has a template with the image of real machines.
func (s *stack) startLibvirt(ctx context.Context) (string, error) {
	o := s.options
	l := &libvirtHosts{ports: &s.ports}
	s.hypervisor = l
	s.settings.libvirt = &libvirtSettings{domainType: map[string]string{accelTCG: domainTypeQEMU, accelKVM: domainTypeKVM}[o.Accel]}

	var image testlibvirt.Image

	for i := range o.Nodes {
		host, err := testlibvirt.Open(ctx, testlibvirt.Options{KVM: o.Accel != accelTCG})
		if err != nil {
			return "", err
		}

		l.hosts = append(l.hosts, host)

		if i == 0 {
			image, err = host.Publish(testlibvirt.Image{Disk: o.Image, Kernel: o.Kernel, Initrd: o.Initrd, Append: o.Append})
		}

		if err == nil {
			err = host.CreateTemplate(image)
		}

		if err != nil {
			return "", err
		}

		s.settings.libvirt.hosts = append(s.settings.libvirt.hosts, v1alpha1.LibvirtHost{
			Name: "host-" + strconv.Itoa(i+1), URI: host.URI(), StoragePool: testlibvirt.PoolName,
		})
	}

	return s.settings.libvirt.hosts[0].URI, nil
}

// applyTo replaces the connection of the cluster's spec. It does nothing on nil.
func (l *libvirtSettings) applyTo(spec *v1alpha1.HypervisorClusterSpec) {
	if l == nil {
		return
	}

	spec.Provider, spec.Endpoint, spec.TLS = v1alpha1.ProviderLibvirt, "", nil
	spec.Credentials = v1alpha1.HypervisorCredentials{}
	spec.Libvirt = &v1alpha1.LibvirtCluster{Hosts: l.hosts, DomainType: l.domainType}
}

// state reads domains and volumes.
func (l *libvirtHosts) state(context.Context) (hypervisorState, error) {
	out := hypervisorState{vms: map[int]vmState{}}

	for i, host := range l.hosts {
		err := host.Use(func(rpc *golibvirt.Libvirt) error {
			isos, err := out.addHost(rpc, i)
			out.isos = append(out.isos, isos...)

			return err
		})
		if err != nil {
			return out, fmt.Errorf("read the state of libvirt: %w", err)
		}
	}

	return out, nil
}

// diskName matches the name of a machine's disk.
var diskName = regexp.MustCompile(`^hf-.*\.(disk|run)$`)

// addHost adds the domains and disks of a host, and returns its ISOs. A machine's ID is the number at the end of its
// domain's name, and in the name of its disk: hf-HASH-ID-UID.disk, or .HOST.run for a transient domain.
func (h hypervisorState) addHost(rpc *golibvirt.Libvirt, number int) (isos []string, err error) {
	pool, err := rpc.StoragePoolLookupByName(testlibvirt.PoolName)
	if err != nil {
		return nil, err
	}

	volumes, _, err := rpc.StoragePoolListAllVolumes(pool, 1, 0)
	if err != nil {
		return nil, err
	}

	const idPart = 2

	for _, v := range volumes {
		parts := strings.Split(v.Name, "-")

		switch {
		case strings.HasSuffix(v.Name, ".iso"):
			isos = append(isos, v.Name)
		case diskName.MatchString(v.Name) && len(parts) > idPart:
			id, _ := strconv.Atoi(parts[idPart])
			h.vms[id] = vmState{label: "the disk " + v.Name}
		}
	}

	domains, _, err := rpc.ConnectListAllDomains(1, 0)
	if err != nil {
		return nil, err
	}

	for _, d := range domains {
		text, err := rpc.DomainGetXMLDesc(d, golibvirt.DomainXMLInactive)
		if golibvirt.IsNotFound(err) {
			continue // it was deleted in the meantime
		}

		if err != nil {
			return nil, err
		}

		id, err := strconv.Atoi(d.Name[strings.LastIndex(d.Name, "-")+1:])
		if err != nil {
			id = -1 - number // the template
		}

		h.vms[id] = vmState{label: d.Name, fingerprint: text}
	}

	return isos, nil
}

func (l *libvirtHosts) stateWithCalls(ctx context.Context) (hypervisorState, error) {
	out, err := l.state(ctx)
	if err == nil {
		out.calls, err = l.countCalls(ctx)
	}

	return out, err
}

// classOfOperation has the operator's operations on libvirt, and the class of the simulator's calls for the same purpose.
func classOfOperation() map[string]pve.Class {
	return map[string]pve.Class{
		"createDomain": pve.ClassVM, "defineDomain": pve.ClassVM, "resumeDomain": pve.ClassVM, "destroyDomain": pve.ClassVM,
		"undefineDomain": pve.ClassVM, "readState": pve.ClassVM, "openConsole": pve.ClassVM,
		"createVolume": pve.ClassStorage, "copyVolume": pve.ClassStorage, "uploadVolume": pve.ClassStorage,
		"deleteVolume": pve.ClassStorage,
		"listDomains":  pve.ClassListing, "listVolumes": pve.ClassListing, "readMetadata": pve.ClassListing,
		"readDomain": pve.ClassOther, "readVolume": pve.ClassOther, "readPool": pve.ClassOther, "findVolume": pve.ClassOther,
		"readNetwork": pve.ClassOther,
	}
}

// countCalls reads the numbers of calls from the operator's metrics, because libvirt counts none. Before the operator
// has started, they are 0.
func (l *libvirtHosts) countCalls(ctx context.Context) (pve.CallCounts, error) {
	out := pve.CallCounts{ByClass: map[pve.Class]int{}}

	for operation, class := range classOfOperation() {
		total, ok, err := l.countOperation(ctx, operation)
		if err != nil {
			return out, err
		}

		out.ByClass[class] += total
		out.Total, out.Errors = out.Total+total, out.Errors+total-ok
	}

	return out, nil
}

// countOperation returns the number of calls of an operation, and of those that succeeded.
func (l *libvirtHosts) countOperation(ctx context.Context, operation string) (total, ok int, err error) {
	const metric = "hyperfleet_external_call_duration_seconds_count"

	labels := fmt.Sprintf("operation=%q,system=%q", operation, v1alpha1.ProviderLibvirt)

	url := l.ports.metricsURL()

	all, err := scrape.Sum(ctx, url, metric, labels)
	if errors.Is(err, scrape.ErrNoSeries) {
		return 0, 0, nil
	}

	if err != nil {
		return 0, 0, err
	}

	good, err := scrape.Sum(ctx, url, metric, `code="ok",`+labels)
	if errors.Is(err, scrape.ErrNoSeries) {
		err = nil
	}

	return int(all), int(good), err
}

// measure sets the numbers of calls. It does not set a floor, because the boot time of real machines is unknown.
func (l *libvirtHosts) measure(ctx context.Context, s *stack, r *Report) error {
	calls, err := l.countCalls(ctx)
	if err != nil {
		return fmt.Errorf("measure the hypervisor: %w", err)
	}

	created, _, err := l.countOperation(ctx, "createDomain")
	if err != nil {
		return fmt.Errorf("measure the hypervisor: %w", err)
	}

	r.VMsCreated = created
	r.countCalls(calls, s.baseline)

	return nil
}

// consoles returns an empty map, because libvirt does not store console output.
func (l *libvirtHosts) consoles(context.Context) (map[int]string, error) {
	return map[int]string{}, nil
}

// close ends the hosts and their machines.
func (l *libvirtHosts) close() error {
	var errs []error
	for _, host := range l.hosts {
		errs = append(errs, host.Close())
	}

	return errors.Join(errs...)
}
