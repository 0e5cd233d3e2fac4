// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Annotations of MetalLB (controller/service.go), and the priority of a pool that sets none.
const (
	annotationPool          = "metallb.io/address-pool"
	annotationIPs           = "metallb.io/loadBalancerIPs"
	annotationAllocatedFrom = "metallb.io/ip-allocated-from-pool"
	annotationSharing       = "metallb.io/allow-shared-ip"
	defaultPoolPriority     = 1 << 30
)

var errNoAddress = errors.New("no available IPs")

// addressPool is a valid IPAddressPool.
type addressPool struct {
	name   string
	ranges []addressRange
	// autoAssign allows the pool for Services that do not request a pool.
	autoAssign bool
	// hasServiceAllocation restricts the pool to the Services that spec.serviceAllocation selects. Pools
	// with a lower priority value come first.
	hasServiceAllocation bool
	namespaces           []string
	selectors            []labels.Selector
	priority             int64
	// avoidBuggyIPs excludes the IPv4 addresses that end in 0 or 255.
	avoidBuggyIPs bool
}

// addressRange contains all addresses from its first to its last, both included.
type addressRange struct{ from, to netip.Addr }

func (r addressRange) contains(address netip.Addr) bool {
	return r.from.Compare(address) <= 0 && address.Compare(r.to) <= 0
}

func (r addressRange) overlaps(other addressRange) bool {
	return r.contains(other.from) || other.contains(r.from)
}

func (r addressRange) String() string { return r.from.String() + "-" + r.to.String() }

func newAddressRange(n *net.IPNet) addressRange {
	last := slices.Clone(n.IP)
	for i := range last {
		last[i] |= ^n.Mask[i]
	}

	from, _ := netip.AddrFromSlice(n.IP)
	to, _ := netip.AddrFromSlice(last)

	if from.Is4In6() {
		return addressRange{from.Unmap(), to.Unmap()}
	}

	return addressRange{from, to}
}

// listAddressPools returns MetalLB's valid pools, the oldest first. It records a violation for each pool
// that MetalLB's webhook would have rejected, and leaves the pool out.
func (s *Sim) listAddressPools(ctx context.Context) ([]addressPool, error) {
	objects, err := s.list(ctx, addressPoolGVK(), s.options.MetalLBNamespace)
	if err != nil {
		return nil, err
	}

	slices.SortFunc(objects, func(a, b unstructured.Unstructured) int {
		older := a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time)
		if older != 0 {
			return older
		}

		return strings.Compare(a.GetName(), b.GetName())
	})

	var out []addressPool

	for i := range objects {
		p, err := parseAddressPool(&objects[i])
		if err == nil {
			err = checkOverlap(p, out)
		}

		if err != nil {
			s.recordViolation(key{kindAddressPool, client.ObjectKeyFromObject(&objects[i])}, err.Error())

			continue
		}

		out = append(out, p)
	}

	return out, nil
}

// validateAddressPools simulates MetalLB's webhook. It records a violation for a pool in another
// namespace than MetalLB's, and for each invalid pool.
func (s *Sim) validateAddressPools(ctx context.Context, k key) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(addressPoolGVK())

	err := s.client.Get(ctx, k.NamespacedName, object)
	if err != nil {
		return client.IgnoreNotFound(err)
	}

	if k.Namespace != s.options.MetalLBNamespace {
		s.recordViolation(k, fmt.Sprintf("resource must be created in %s namespace", s.options.MetalLBNamespace))

		return nil
	}

	_, err = s.listAddressPools(ctx)

	return err
}

func parseAddressPool(object *unstructured.Unstructured) (addressPool, error) {
	p := addressPool{name: object.GetName(), autoAssign: true, priority: defaultPoolPriority}

	addresses, _, _ := unstructured.NestedStringSlice(object.Object, "spec", "addresses")
	for _, text := range addresses {
		r, err := parseAddressRange(text)
		if err != nil {
			return p, err
		}

		p.ranges = append(p.ranges, r)
	}

	if len(p.ranges) == 0 {
		return p, errors.New("pool has no prefixes defined")
	}

	if auto, found, _ := unstructured.NestedBool(object.Object, "spec", "autoAssign"); found {
		p.autoAssign = auto
	}

	p.avoidBuggyIPs, _, _ = unstructured.NestedBool(object.Object, "spec", "avoidBuggyIPs")

	allocation, found, _ := unstructured.NestedMap(object.Object, "spec", "serviceAllocation")
	if !found {
		return p, nil
	}

	p.hasServiceAllocation = true
	p.namespaces, _, _ = unstructured.NestedStringSlice(allocation, "namespaces")

	if priority, found, _ := unstructured.NestedInt64(allocation, "priority"); found && priority > 0 {
		p.priority = priority
	}

	var spec struct {
		ServiceSelectors []metav1.LabelSelector `json:"serviceSelectors"`
	}

	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(allocation, &spec); err != nil {
		return p, fmt.Errorf("parse serviceSelectors: %w", err)
	}

	for i := range spec.ServiceSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&spec.ServiceSelectors[i])
		if err != nil {
			return p, fmt.Errorf("invalid service selector: %w", err)
		}

		p.selectors = append(p.selectors, selector)
	}

	return p, nil
}

// parseAddressRange parses a CIDR or a range FIRST-LAST (ParseCIDR of internal/config).
func parseAddressRange(text string) (addressRange, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		_, n, err := net.ParseCIDR(text)
		if err != nil {
			return addressRange{}, fmt.Errorf("invalid CIDR %q", text)
		}

		return newAddressRange(n), nil
	}

	from, ok := netip.AddrFromSlice(net.ParseIP(strings.TrimSpace(first)))
	if !ok {
		return addressRange{}, fmt.Errorf("invalid IP range %q: invalid start IP %q", text, first)
	}

	to, ok := netip.AddrFromSlice(net.ParseIP(strings.TrimSpace(last)))
	if !ok {
		return addressRange{}, fmt.Errorf("invalid IP range %q: invalid end IP %q", text, last)
	}

	from, to = from.Unmap(), to.Unmap()

	r := addressRange{from, to}

	switch {
	case from.Is4() != to.Is4():
		return r, fmt.Errorf("invalid IP range %q: start and end IPs must be the same family", text)
	case to.Less(from):
		return r, fmt.Errorf("invalid IP range %q: start IP %q is after the end IP %q", text, from, to)
	}

	return r, nil
}

// checkOverlap returns an error if an address of the pool is also in another pool, or twice in the same
// pool. MetalLB's configuration has the same rule.
func checkOverlap(p addressPool, others []addressPool) error {
	for i, a := range p.ranges {
		for _, other := range append(others[:len(others):len(others)], addressPool{ranges: p.ranges[:i]}) {
			for _, b := range other.ranges {
				if a.overlaps(b) {
					return fmt.Errorf("CIDR %q in pool %q overlaps with already defined CIDR %q", a.String(), p.name, b.String())
				}
			}
		}
	}

	return nil
}

func (p addressPool) contains(address netip.Addr) bool {
	if last := address.AsSlice()[address.BitLen()/8-1]; p.avoidBuggyIPs && address.Is4() && (last == 0 || last == 255) {
		return false
	}

	return slices.ContainsFunc(p.ranges, func(r addressRange) bool { return r.contains(address) })
}

// isAllowedFor returns true if MetalLB may allocate addresses of the pool to the Service
// (isPoolCompatibleWithService).
func (p addressPool) isAllowedFor(service *corev1.Service) bool {
	if len(p.namespaces) > 0 && !slices.Contains(p.namespaces, service.Namespace) {
		return false
	}

	return len(p.selectors) == 0 || slices.ContainsFunc(p.selectors, func(selector labels.Selector) bool {
		return selector.Matches(labels.Set(service.Labels))
	})
}

// reconcileService allocates addresses for a Service of type LoadBalancer. It releases them if the
// Service may not have them any longer (convergeBalancer).
func (s *Sim) reconcileService(ctx context.Context, k key) error {
	s.allocationMu.Lock()
	defer s.allocationMu.Unlock()

	service := &corev1.Service{}
	if err := s.client.Get(ctx, k.NamespacedName, service); err != nil {
		return client.IgnoreNotFound(err)
	}

	_, cluster, _ := strings.Cut(service.Annotations[clusterAnnotation], "/")

	if service.DeletionTimestamp != nil || service.Spec.Type != corev1.ServiceTypeLoadBalancer ||
		s.hasFault(NoAddress, cluster) || !s.hasElapsed(k, service.UID, "address", s.options.Delays.Address) {
		return nil
	}

	pools, err := s.listAddressPools(ctx)
	if err != nil {
		return err
	}

	used, err := s.listUsedAddresses(ctx, service)
	if err != nil {
		return err
	}

	families := service.Spec.IPFamilies
	if s.options.Families != nil {
		if others := s.options.Families(cluster); len(others) > 0 {
			families = others
		}
	}

	read := service.DeepCopy()
	read.Annotations = s.readAnnotations(service.Annotations)

	addresses, from, refused := chooseAddresses(read, families, pools, used)
	if refused != nil {
		err := s.emitOnce(ctx, service, "AllocationFailed", fmt.Sprintf("Failed to allocate IP for %q: %s", k.NamespacedName, refused))
		if err != nil {
			return err
		}
	}

	return s.writeAddresses(ctx, service, addresses, from)
}

// listUsedAddresses returns the addresses of all Services of type LoadBalancer except one, with the
// Service that has each address.
func (s *Sim) listUsedAddresses(ctx context.Context, except *corev1.Service) (map[netip.Addr]*corev1.Service, error) {
	var all corev1.ServiceList
	if err := s.client.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}

	out := map[netip.Addr]*corev1.Service{}

	for i := range all.Items {
		service := &all.Items[i]
		if service.UID == except.UID || service.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}

		for _, ingress := range service.Status.LoadBalancer.Ingress {
			if address, err := netip.ParseAddr(ingress.IP); err == nil {
				out[address] = service
			}
		}
	}

	return out, nil
}

// chooseAddresses returns addresses for a Service and the name of their pool. It chooses the addresses
// that the Service requests. If the Service requests none, it chooses the current addresses if they are
// still allowed, else free addresses of one pool.
func chooseAddresses(
	service *corev1.Service, families []corev1.IPFamily, pools []addressPool, used map[netip.Addr]*corev1.Service,
) ([]netip.Addr, string, error) {
	requested := service.Annotations[annotationIPs]
	if requested == "" {
		requested = service.Spec.LoadBalancerIP
	}

	if requested != "" {
		addresses, err := parseAddresses(strings.Split(requested, ","))
		if err != nil {
			return nil, "", fmt.Errorf("invalid %s: %q", annotationIPs, requested)
		}

		if len(addresses) != len(families) ||
			slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !slices.Contains(families, familyOf(a)) }) {
			return nil, "", fmt.Errorf("requested loadBalancer IP(s) %q does not match the ipFamily of the service", addresses)
		}

		from, err := poolForAll(service, addresses, pools, used)

		return addresses, from, err
	}

	var current []string
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		current = append(current, ingress.IP)
	}

	if addresses, err := parseAddresses(current); err == nil && len(addresses) > 0 {
		if from, err := poolForAll(service, addresses, pools, used); err == nil {
			return addresses, from, nil
		}
	}

	for _, p := range listCandidatePools(service, pools) {
		// With PreferDualStack, a pool that has addresses of one family only is sufficient.
		if addresses := p.findFree(service, families, pools, used); len(addresses) > 0 {
			return addresses, p.name, nil
		}
	}

	return nil, "", errNoAddress
}

// findFree returns the first free address of the pool for each family. It leaves out a family that has
// none.
func (p addressPool) findFree(
	service *corev1.Service, families []corev1.IPFamily, pools []addressPool, used map[netip.Addr]*corev1.Service,
) []netip.Addr {
	var out []netip.Addr

	for _, family := range families {
		found := false

		for _, r := range p.ranges {
			for address := r.from; !found && familyOf(address) == family && r.contains(address); address = address.Next() {
				if from, err := poolForAddress(service, address, pools, used); err == nil && from == p.name {
					out, found = append(out, address), true
				}
			}
		}
	}

	return out
}

func familyOf(address netip.Addr) corev1.IPFamily {
	if address.Is4() {
		return corev1.IPv4Protocol
	}

	return corev1.IPv6Protocol
}

func parseAddresses(texts []string) ([]netip.Addr, error) {
	var out []netip.Addr

	for _, text := range texts {
		address, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("parse address: %w", err)
		}

		out = append(out, address)
	}

	return out, nil
}

// poolForAll returns the pool that contains all the addresses. It fails if the addresses are in several
// pools, or if the Service may not have one of them.
func poolForAll(
	service *corev1.Service, addresses []netip.Addr, pools []addressPool, used map[netip.Addr]*corev1.Service,
) (string, error) {
	pool := ""

	for _, address := range addresses {
		from, err := poolForAddress(service, address, pools, used)
		if err != nil {
			return "", err
		}

		if pool != "" && pool != from {
			return "", fmt.Errorf("%q is not allowed in config", addresses)
		}

		pool = from
	}

	return pool, nil
}

// listCandidatePools returns the pools for a Service that requests no address. If the Service names a
// pool, that is the only one. Else the pools with a service allocation for the Service come first, by
// priority, and the unrestricted pools follow.
func listCandidatePools(service *corev1.Service, pools []addressPool) []addressPool {
	if name := service.Annotations[annotationPool]; name != "" {
		return slices.DeleteFunc(slices.Clone(pools), func(p addressPool) bool { return p.name != name })
	}

	var pinned, others []addressPool

	for _, p := range pools {
		switch {
		case !p.autoAssign:
		case !p.hasServiceAllocation:
			others = append(others, p)
		case p.isAllowedFor(service):
			pinned = append(pinned, p)
		}
	}

	slices.SortStableFunc(pinned, func(a, b addressPool) int { return int(a.priority - b.priority) })

	return append(pinned, others...)
}

// poolForAddress returns the pool that contains the address. It fails if the Service may not have the
// address, or if another Service has the address and does not share it.
func poolForAddress(
	service *corev1.Service, address netip.Addr, pools []addressPool, used map[netip.Addr]*corev1.Service,
) (string, error) {
	index := slices.IndexFunc(pools, func(p addressPool) bool { return p.contains(address) })

	switch {
	case index < 0:
		return "", fmt.Errorf("%q is not allowed in config", []netip.Addr{address})
	case !pools[index].isAllowedFor(service):
		return "", fmt.Errorf("pool %s not compatible for ip assignment", pools[index].name)
	}

	if other := used[address]; other != nil {
		sharing := service.Annotations[annotationSharing]
		if sharing == "" || sharing != other.Annotations[annotationSharing] {
			return "", fmt.Errorf("can't change sharing key for %q, address also in use by %s",
				client.ObjectKeyFromObject(service), client.ObjectKeyFromObject(other))
		}
	}

	return pools[index].name, nil
}

// writeAddresses writes a Service's addresses and the name of their pool. It releases the current
// addresses if the pool name is empty.
func (s *Sim) writeAddresses(ctx context.Context, service *corev1.Service, addresses []netip.Addr, pool string) error {
	var ingress []corev1.LoadBalancerIngress

	for _, address := range addresses {
		if pool != "" {
			ingress = append(ingress, corev1.LoadBalancerIngress{IP: address.String()})
		}
	}

	if service.Annotations[annotationAllocatedFrom] != pool {
		before := service.DeepCopy()

		metav1.SetMetaDataAnnotation(&service.ObjectMeta, annotationAllocatedFrom, pool)

		if pool == "" {
			delete(service.Annotations, annotationAllocatedFrom)
		}

		if err := s.client.Patch(ctx, service, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("annotate: %w", err)
		}
	}

	hasSameIP := func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP }
	if slices.EqualFunc(service.Status.LoadBalancer.Ingress, ingress, hasSameIP) {
		return nil
	}

	service.Status.LoadBalancer.Ingress = ingress

	if err := s.client.Status().Update(ctx, service); err != nil {
		return fmt.Errorf("update addresses: %w", err)
	}

	if pool != "" {
		return s.emitOnce(ctx, service, "IPAllocated", fmt.Sprintf("Assigned IP %q", addresses))
	}

	return nil
}

// emitOnce creates an event for a Service, unless the Sim has created the same event before.
func (s *Sim) emitOnce(ctx context.Context, service *corev1.Service, reason, message string) error {
	id := string(service.UID) + reason + message

	s.mu.Lock()
	before := s.emittedEvents[id]
	s.mu.Unlock()

	if before {
		return nil
	}

	kind := corev1.EventTypeNormal
	if reason == "AllocationFailed" {
		kind = corev1.EventTypeWarning
	}

	now := metav1.NewTime(s.options.Clock.Now())

	err := s.client.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, GenerateName: service.Name + "."},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service", Namespace: service.Namespace, Name: service.Name, UID: service.UID,
		},
		Type: kind, Reason: reason, Message: message, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: "metallb-controller"},
	})
	if err != nil {
		return fmt.Errorf("create event: %w", err)
	}

	s.mu.Lock()
	s.emittedEvents[id] = true
	s.mu.Unlock()

	return nil
}
