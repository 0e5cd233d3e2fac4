#!/bin/bash
set -uo pipefail

probe() {
	local label=$1 state=lost code
	(set -e; "probe_${label//-/_}") >/dev/null 2>&1 </dev/null
	code=$?
	if [ "$code" -eq 0 ]; then state=intact; fi
	printf '%s %s\n' "$label" "$state"
}

probe_firewall_rules() {
	sum=$(sha256sum <'/etc/hyperfleet/egress.nft' || shasum -a 256 <'/etc/hyperfleet/egress.nft')
	test "${sum%% *}" = '1fd60c24d032d1a35cc23b6fff5549a5d03f6da7d5b4289234fb13c2122d523a'
	test ! -L '/etc/hyperfleet/egress.nft'
	test "$(stat -c '%a %U:%G' '/etc/hyperfleet/egress.nft' || stat -f '%Lp %Su:%Sg' '/etc/hyperfleet/egress.nft')" = '644 root:root'
}
probe firewall-rules

probe_firewall_unit() {
	sum=$(sha256sum <'/etc/systemd/system/hyperfleet-firewall.service' || shasum -a 256 <'/etc/systemd/system/hyperfleet-firewall.service')
	test "${sum%% *}" = '383bb21983b6fb520ed55b16bac7421ca9c86134a5133170573c3fe7d733d4c4'
	test ! -L '/etc/systemd/system/hyperfleet-firewall.service'
	test "$(stat -c '%a %U:%G' '/etc/systemd/system/hyperfleet-firewall.service' || stat -f '%Lp %Su:%Sg' '/etc/systemd/system/hyperfleet-firewall.service')" = '644 root:root'
}
probe firewall-unit

probe_firewall() {
	systemctl is-active hyperfleet-firewall.service
	systemctl is-enabled hyperfleet-firewall.service
	nft list chain inet hyperfleet egress | grep -w drop
}
probe firewall

probe_tailscale_cli() {
	sum=$(sha256sum <'/usr/local/bin/tailscale' || shasum -a 256 <'/usr/local/bin/tailscale')
	test "${sum%% *}" = '54a53d15cfb39fe60b2ad16b21f20be324140762e19fa4c60be93efe9d6d1463'
	test ! -L '/usr/local/bin/tailscale'
	test "$(stat -c '%a %U:%G' '/usr/local/bin/tailscale' || stat -f '%Lp %Su:%Sg' '/usr/local/bin/tailscale')" = '755 root:root'
}
probe tailscale-cli

probe_tailscaled() {
	sum=$(sha256sum <'/usr/local/bin/tailscaled' || shasum -a 256 <'/usr/local/bin/tailscaled')
	test "${sum%% *}" = '3c4cae5d3451f133540e3fc5e83bc23f2b1d4144278f8fa9b7823315c547be17'
	test ! -L '/usr/local/bin/tailscaled'
	test "$(stat -c '%a %U:%G' '/usr/local/bin/tailscaled' || stat -f '%Lp %Su:%Sg' '/usr/local/bin/tailscaled')" = '755 root:root'
}
probe tailscaled

probe_tailscaled_service_unit() {
	sum=$(sha256sum <'/etc/systemd/system/hyperfleet-tailscaled.service' || shasum -a 256 <'/etc/systemd/system/hyperfleet-tailscaled.service')
	test "${sum%% *}" = '293a4f7acb30d7f46f9d76b98dd5070fdb4851c8b13158554cfc5838b7c29eb9'
	test ! -L '/etc/systemd/system/hyperfleet-tailscaled.service'
	test "$(stat -c '%a %U:%G' '/etc/systemd/system/hyperfleet-tailscaled.service' || stat -f '%Lp %Su:%Sg' '/etc/systemd/system/hyperfleet-tailscaled.service')" = '644 root:root'
}
probe tailscaled-service-unit

probe_tailscaled_service() {
	systemctl is-active hyperfleet-tailscaled.service
	systemctl is-enabled hyperfleet-tailscaled.service
}
probe tailscaled-service

probe_tailscale() {
	'/usr/local/bin/tailscale' ip -4 | grep '^100\.'
}
probe tailscale

probe_node_exporter() {
	sum=$(sha256sum <'/usr/local/bin/node_exporter' || shasum -a 256 <'/usr/local/bin/node_exporter')
	test "${sum%% *}" = 'b61ceedd29b6c6f176fa9f9eb2cab042c12c4366f8769a40b8babb99cc9cf54d'
	test ! -L '/usr/local/bin/node_exporter'
	test "$(stat -c '%a %U:%G' '/usr/local/bin/node_exporter' || stat -f '%Lp %Su:%Sg' '/usr/local/bin/node_exporter')" = '755 root:root'
}
probe node-exporter

probe_node_exporter_run() {
	sum=$(sha256sum <'/usr/local/libexec/hyperfleet/node-exporter' || shasum -a 256 <'/usr/local/libexec/hyperfleet/node-exporter')
	test "${sum%% *}" = '77ac89e83081401c9e8070adc1dce1f790f41b54180ce3b1e44bfe62c4f68c72'
	test ! -L '/usr/local/libexec/hyperfleet/node-exporter'
	test "$(stat -c '%a %U:%G' '/usr/local/libexec/hyperfleet/node-exporter' || stat -f '%Lp %Su:%Sg' '/usr/local/libexec/hyperfleet/node-exporter')" = '755 root:root'
}
probe node-exporter-run

probe_node_exporter_service_unit() {
	sum=$(sha256sum <'/etc/systemd/system/hyperfleet-node-exporter.service' || shasum -a 256 <'/etc/systemd/system/hyperfleet-node-exporter.service')
	test "${sum%% *}" = '45376467e4b79e930f8366703a73f4b5e156ae8fe372a73af167cd9d3949762f'
	test ! -L '/etc/systemd/system/hyperfleet-node-exporter.service'
	test "$(stat -c '%a %U:%G' '/etc/systemd/system/hyperfleet-node-exporter.service' || stat -f '%Lp %Su:%Sg' '/etc/systemd/system/hyperfleet-node-exporter.service')" = '644 root:root'
}
probe node-exporter-service-unit

probe_node_exporter_service() {
	systemctl is-active hyperfleet-node-exporter.service
	systemctl is-enabled hyperfleet-node-exporter.service
}
probe node-exporter-service

probe_kubeconfig() {
	test -s '/etc/hyperfleet/kubeconfig'
	test ! -L '/etc/hyperfleet/kubeconfig'
	test "$(stat -c '%a %U:%G' '/etc/hyperfleet/kubeconfig' || stat -f '%Lp %Su:%Sg' '/etc/hyperfleet/kubeconfig')" = '600 root:root'
}
probe kubeconfig

probe_agent() {
	sum=$(sha256sum <'/usr/local/bin/hyperfleet-agent' || shasum -a 256 <'/usr/local/bin/hyperfleet-agent')
	test "${sum%% *}" = 'a04f560d4d61e9829da24045c7dfb7c67ea53ecadc77f7ded2e722114fd2b9b1'
	test ! -L '/usr/local/bin/hyperfleet-agent'
	test "$(stat -c '%a %U:%G' '/usr/local/bin/hyperfleet-agent' || stat -f '%Lp %Su:%Sg' '/usr/local/bin/hyperfleet-agent')" = '755 root:root'
}
probe agent

probe_agent_unit() {
	sum=$(sha256sum <'/etc/systemd/system/hyperfleet-agent.service' || shasum -a 256 <'/etc/systemd/system/hyperfleet-agent.service')
	test "${sum%% *}" = '480abb069d239b60b24e480c56b2a55a901979d2151ae19e71dfa0b42b6d1fb4'
	test ! -L '/etc/systemd/system/hyperfleet-agent.service'
	test "$(stat -c '%a %U:%G' '/etc/systemd/system/hyperfleet-agent.service' || stat -f '%Lp %Su:%Sg' '/etc/systemd/system/hyperfleet-agent.service')" = '644 root:root'
}
probe agent-unit

probe_agent_service() {
	systemctl is-active hyperfleet-agent.service
	systemctl is-enabled hyperfleet-agent.service
}
probe agent-service

exit 0
