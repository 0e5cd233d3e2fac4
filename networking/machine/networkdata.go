// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
)

// networkSecret is the Secret with the machine's network data.
type networkSecret struct {
	name   string
	data   []byte
	format netdata.Format
}

// ensureNetworkData renders the machine's network data with its addresses, and creates an immutable Secret
// with them. The name of the Secret has a digest of the data. The operator therefore does not need to read
// the Secret, and needs no permission for it.
func ensureNetworkData(ctx context.Context, s *scope) step.Result {
	if s.machine.Spec.BootstrapNetworkConfig == nil {
		return step.Done().WithReason("DHCP", "")
	}

	addresses, err := s.recordedAddresses()
	if err != nil {
		return s.stall("InvalidAddresses", err.Error())
	}

	mac, err := s.macAddress()
	if err != nil {
		return s.stall("InvalidNetworkData", err.Error())
	}

	data, format, err := kubevirt.RenderNetworkData(s.machine, mac, addresses)
	if err != nil {
		return s.stall("InvalidNetworkData", err.Error())
	}

	s.network = networkSecret{name: s.secretName(data), data: data, format: format}

	if s.vm != nil && kubevirt.NetworkDataSecret(s.vm) == s.network.name && isRunning(s.vm) {
		return step.Done() // the guest has already read the network data
	}

	immutable := true
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.machine.Namespace, Name: s.network.name,
			Labels: map[string]string{v1alpha1.LabelMachine: s.machine.Name},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(s.machine, v1alpha1.GroupVersion.WithKind(kindMachine)),
			},
		},
		Immutable: &immutable,
		Data:      map[string][]byte{kubevirt.NetworkDataKey: data},
	}

	if err := s.Client.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return step.Fail(fmt.Errorf("create secret %s with network data: %w", secret.Name, err))
	}

	return step.Done()
}

// macAddress returns the MAC address of the interface with static addresses. An existing VirtualMachine keeps
// its MAC address, also if the machine was restored and has another UID since.
func (s *scope) macAddress() (string, error) {
	if s.vm != nil && isOwned(s.vm, s.machine) {
		if mac := kubevirt.InterfaceMAC(s.vm, s.machine.Spec.BootstrapNetworkConfig.NetworkName); mac != "" {
			return mac, nil
		}
	}

	return kubevirt.MACAddress(s.machine)
}

// secretName returns the name of the Secret with network data. For a VirtualMachine of an earlier object with
// the machine's name, the name has a digest of the UID too, because the earlier object owns the other Secret.
func (s *scope) secretName(data []byte) string {
	plain, own := sha256.Sum256(data), sha256.Sum256(append([]byte(s.machine.UID), data...))
	prefix := s.machine.Name + "-network-"
	name, ownName := prefix+hex.EncodeToString(plain[:4]), prefix+hex.EncodeToString(own[:4])

	if s.vm != nil && (kubevirt.IsRestored(s.vm, s.machine) || kubevirt.NetworkDataSecret(s.vm) == ownName) {
		return ownName
	}

	return name
}
