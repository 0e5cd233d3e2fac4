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
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Annotations of MetalLB's (controller/service.go).
const (
	annotationPool      = "metallb.io/address-pool"
	annotationIPs       = "metallb.io/loadBalancerIPs"
	annotationFrom      = "metallb.io/ip-allocated-from-pool"
	annotationSharing   = "metallb.io/allow-shared-ip"
	defaultPoolPriority = 1 << 30
)

var errNoAddress = errors.New("no available IPs")

// addressPool is an IPAddressPool that can be used.
type addressPool struct {
	name   string
	ranges []addressRange
	// auto: a Service that does not ask for the pool may have of it.
	auto bool
	// pinned: only the Services of serviceAllocation may have of it, lower priorities first.
	pinned     bool
	namespaces []string
	priority   int64
}

// addressRange is all from the first address to the last.
type addressRange struct{ from, to netip.Addr }

func (r addressRange) contains(address netip.Addr) bool {
	return r.from.Compare(address) <= 0 && address.Compare(r.to) <= 0
}

func (r addressRange) overlaps(other addressRange) bool {
	return r.contains(other.from) || other.contains(r.from)
}

func (r addressRange) String() string { return r.from.String() + "-" + r.to.String() }

func rangeOf(n *net.IPNet) addressRange {
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

// pools reads MetalLB's pools. What the webhook would have refused is not there.
func (s *Sim) pools(ctx context.Context) ([]addressPool, error) {
	objects, err := s.list(ctx, metallbKind(), s.options.MetalLBNamespace)
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
		p, err := readPool(&objects[i])
		if err == nil {
			err = overlap(p, out)
		}

		if err != nil {
			s.violation(key{kindAddressPool, client.ObjectKeyFromObject(&objects[i])}, err.Error())

			continue
		}

		out = append(out, p)
	}

	return out, nil
}

// checkPool is MetalLB's webhook.
func (s *Sim) checkPool(ctx context.Context, k key) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(metallbKind())

	err := s.client.Get(ctx, k.NamespacedName, object)
	if err != nil {
		return client.IgnoreNotFound(err)
	}

	if k.Namespace != s.options.MetalLBNamespace {
		s.violation(k, fmt.Sprintf("resource must be created in %s namespace", s.options.MetalLBNamespace))

		return nil
	}

	_, err = s.pools(ctx)

	return err
}

func readPool(object *unstructured.Unstructured) (addressPool, error) {
	p := addressPool{name: object.GetName(), auto: true, priority: defaultPoolPriority}

	addresses, _, _ := unstructured.NestedStringSlice(object.Object, "spec", "addresses")
	for _, text := range addresses {
		r, err := parseRange(text)
		if err != nil {
			return p, err
		}

		p.ranges = append(p.ranges, r)
	}

	if len(p.ranges) == 0 {
		return p, errors.New("pool has no prefixes defined")
	}

	if auto, found, _ := unstructured.NestedBool(object.Object, "spec", "autoAssign"); found {
		p.auto = auto
	}

	allocation, found, _ := unstructured.NestedMap(object.Object, "spec", "serviceAllocation")
	if !found {
		return p, nil
	}

	p.pinned = true
	p.namespaces, _, _ = unstructured.NestedStringSlice(allocation, "namespaces")

	if priority, found, _ := unstructured.NestedInt64(allocation, "priority"); found && priority > 0 {
		p.priority = priority
	}

	return p, nil
}

// parseRange is ParseCIDR of internal/config.
func parseRange(text string) (addressRange, error) {
	first, last, ranged := strings.Cut(text, "-")
	if !ranged {
		_, n, err := net.ParseCIDR(text)
		if err != nil {
			return addressRange{}, fmt.Errorf("invalid CIDR %q", text)
		}

		return rangeOf(n), nil
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

// overlap refuses what MetalLB's config does: two pools with one address, and a pool that has
// it twice.
func overlap(p addressPool, others []addressPool) error {
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

func (p addressPool) has(address netip.Addr) bool {
	return slices.ContainsFunc(p.ranges, func(r addressRange) bool { return r.contains(address) })
}

// takes tells whether a Service may have of the pool (isPoolCompatibleWithService).
func (p addressPool) takes(service *corev1.Service) bool {
	return !p.pinned || len(p.namespaces) == 0 || slices.Contains(p.namespaces, service.Namespace)
}

// balance gives a Service of type LoadBalancer its address, or takes it away where it may
// not have it any more (convergeBalancer).
func (s *Sim) balance(ctx context.Context, k key) error {
	s.giving.Lock()
	defer s.giving.Unlock()

	service := &corev1.Service{}
	if err := s.client.Get(ctx, k.NamespacedName, service); err != nil {
		return client.IgnoreNotFound(err)
	}

	_, cluster, _ := strings.Cut(service.Annotations[clusterAnnotation], "/")

	if service.DeletionTimestamp != nil || service.Spec.Type != corev1.ServiceTypeLoadBalancer ||
		s.has(NoAddress, cluster) || !s.after(k, service.UID, "address", s.options.Delays.Address) {
		return nil
	}

	pools, err := s.pools(ctx)
	if err != nil {
		return err
	}

	used, err := s.used(ctx, service)
	if err != nil {
		return err
	}

	families := service.Spec.IPFamilies
	if s.options.Families != nil {
		if others := s.options.Families(cluster); len(others) > 0 {
			families = others
		}
	}

	addresses, from, refused := pick(service, families, pools, used)
	if refused != nil {
		err := s.tell(ctx, service, "AllocationFailed", fmt.Sprintf("Failed to allocate IP for %q: %s", k.NamespacedName, refused))
		if err != nil {
			return err
		}
	}

	return s.give(ctx, service, addresses, from)
}

// used are the addresses of other Services, with who has them.
func (s *Sim) used(ctx context.Context, but *corev1.Service) (map[netip.Addr]*corev1.Service, error) {
	var all corev1.ServiceList
	if err := s.client.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}

	out := map[netip.Addr]*corev1.Service{}

	for i := range all.Items {
		service := &all.Items[i]
		if service.UID == but.UID || service.Spec.Type != corev1.ServiceTypeLoadBalancer {
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

// pick chooses a Service's addresses: those it has, those it asks for, or free ones, of one pool.
func pick(
	service *corev1.Service, families []corev1.IPFamily, pools []addressPool, used map[netip.Addr]*corev1.Service,
) ([]netip.Addr, string, error) {
	wanted := service.Annotations[annotationIPs]
	if wanted == "" {
		wanted = service.Spec.LoadBalancerIP
	}

	if wanted != "" {
		addresses, err := parseAll(strings.Split(wanted, ","))
		if err != nil {
			return nil, "", fmt.Errorf("invalid %s: %q", annotationIPs, wanted)
		}

		if len(addresses) != len(families) ||
			slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !slices.Contains(families, familyOf(a)) }) {
			return nil, "", fmt.Errorf("requested loadBalancer IP(s) %q does not match the ipFamily of the service", addresses)
		}

		from, err := assignAll(service, addresses, pools, used)

		return addresses, from, err
	}

	var have []string
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		have = append(have, ingress.IP)
	}

	if addresses, err := parseAll(have); err == nil && len(addresses) > 0 {
		if from, err := assignAll(service, addresses, pools, used); err == nil {
			return addresses, from, nil
		}
	}

	for _, p := range candidates(service, pools) {
		// With PreferDualStack a pool of one family gives what it has.
		if addresses := p.free(service, families, pools, used); len(addresses) > 0 {
			return addresses, p.name, nil
		}
	}

	return nil, "", errNoAddress
}

// free are a pool's first free addresses of each family.
func (p addressPool) free(
	service *corev1.Service, families []corev1.IPFamily, pools []addressPool, used map[netip.Addr]*corev1.Service,
) []netip.Addr {
	var out []netip.Addr

	for _, family := range families {
		found := false

		for _, r := range p.ranges {
			for address := r.from; !found && familyOf(address) == family && r.contains(address); address = address.Next() {
				if from, err := assign(service, address, pools, used); err == nil && from == p.name {
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

func parseAll(texts []string) ([]netip.Addr, error) {
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

// assignAll tells from which pool a Service may have all of some addresses.
func assignAll(
	service *corev1.Service, addresses []netip.Addr, pools []addressPool, used map[netip.Addr]*corev1.Service,
) (string, error) {
	pool := ""

	for _, address := range addresses {
		from, err := assign(service, address, pools, used)
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

// candidates are the pools that a Service that asks for no address may have of: the one it
// names, or first those pinned to it and then all that anyone may have of.
func candidates(service *corev1.Service, pools []addressPool) []addressPool {
	if name := service.Annotations[annotationPool]; name != "" {
		return slices.DeleteFunc(slices.Clone(pools), func(p addressPool) bool { return p.name != name })
	}

	var pinned, others []addressPool

	for _, p := range pools {
		switch {
		case !p.auto:
		case !p.pinned:
			others = append(others, p)
		case p.takes(service):
			pinned = append(pinned, p)
		}
	}

	slices.SortStableFunc(pinned, func(a, b addressPool) int { return int(a.priority - b.priority) })

	return append(pinned, others...)
}

// assign tells from which pool a Service may have an address.
func assign(
	service *corev1.Service, address netip.Addr, pools []addressPool, used map[netip.Addr]*corev1.Service,
) (string, error) {
	at := slices.IndexFunc(pools, func(p addressPool) bool { return p.has(address) })

	switch {
	case at < 0:
		return "", fmt.Errorf("%q is not allowed in config", []netip.Addr{address})
	case !pools[at].takes(service):
		return "", fmt.Errorf("pool %s not compatible for ip assignment", pools[at].name)
	}

	if other := used[address]; other != nil {
		sharing := service.Annotations[annotationSharing]
		if sharing == "" || sharing != other.Annotations[annotationSharing] {
			return "", fmt.Errorf("can't change sharing key for %q, address also in use by %s",
				client.ObjectKeyFromObject(service), client.ObjectKeyFromObject(other))
		}
	}

	return pools[at].name, nil
}

// give writes a Service's addresses; none takes them away.
func (s *Sim) give(ctx context.Context, service *corev1.Service, addresses []netip.Addr, from string) error {
	var ingress []corev1.LoadBalancerIngress

	for _, address := range addresses {
		if from != "" {
			ingress = append(ingress, corev1.LoadBalancerIngress{IP: address.String()})
		}
	}

	if service.Annotations[annotationFrom] != from {
		before := service.DeepCopy()

		metav1.SetMetaDataAnnotation(&service.ObjectMeta, annotationFrom, from)

		if from == "" {
			delete(service.Annotations, annotationFrom)
		}

		if err := s.client.Patch(ctx, service, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("annotate: %w", err)
		}
	}

	same := func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP }
	if slices.EqualFunc(service.Status.LoadBalancer.Ingress, ingress, same) {
		return nil
	}

	service.Status.LoadBalancer.Ingress = ingress

	if err := s.client.Status().Update(ctx, service); err != nil {
		return fmt.Errorf("write address: %w", err)
	}

	if from != "" {
		return s.tell(ctx, service, "IPAllocated", fmt.Sprintf("Assigned IP %q", addresses))
	}

	return nil
}

// tell writes an event, once.
func (s *Sim) tell(ctx context.Context, service *corev1.Service, reason, message string) error {
	id := string(service.UID) + reason + message

	s.mu.Lock()
	before := s.told[id]
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
		return fmt.Errorf("write event: %w", err)
	}

	s.mu.Lock()
	s.told[id] = true
	s.mu.Unlock()

	return nil
}
