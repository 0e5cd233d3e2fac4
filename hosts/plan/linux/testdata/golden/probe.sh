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
	test "${sum%% *}" = 'd19b87ee025f6d923aaee52713c4eaa9affe89b28f4f23bd2daa648d8743e43d'
	test ! -L '/etc/hyperfleet/egress.nft'
	test "$(stat -c '%a %U:%G' '/etc/hyperfleet/egress.nft' || stat -f '%Lp %Su:%Sg' '/etc/hyperfleet/egress.nft')" = '644 root:root'
}
probe firewall-rules

probe_firewall_unit() {
	sum=$(sha256sum <'/etc/systemd/system/hyperfleet-firewall.service' || shasum -a 256 <'/etc/systemd/system/hyperfleet-firewall.service')
	test "${sum%% *}" = '513295d65d0a2f45cabb36b388788ec09353a6645d076bec5cef4855408d4417'
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
	test "${sum%% *}" = '16ff0c197348fd5ac31e32b463bc391d072456bec2f78981ad821e545ffb3d40'
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
	test "${sum%% *}" = 'c70bf87e24a03a043ed78f0ac1f0191807091591e0f0324558879e5976e76f38'
	test ! -L '/usr/local/libexec/hyperfleet/node-exporter'
	test "$(stat -c '%a %U:%G' '/usr/local/libexec/hyperfleet/node-exporter' || stat -f '%Lp %Su:%Sg' '/usr/local/libexec/hyperfleet/node-exporter')" = '755 root:root'
}
probe node-exporter-run

probe_node_exporter_service_unit() {
	sum=$(sha256sum <'/etc/systemd/system/hyperfleet-node-exporter.service' || shasum -a 256 <'/etc/systemd/system/hyperfleet-node-exporter.service')
	test "${sum%% *}" = '20d92c4de50607f2cbf39ebff22fbde331ef477b25073aaefcc7a550cb3e1d9a'
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
	test "${sum%% *}" = '17a73634cea78c0859dd9fb65e9e0d70f554650896fe46bb08ab68777a0e03b4'
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
