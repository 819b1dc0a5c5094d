#!/bin/sh
# network.sh: names the cards by their addresses and gives them what the kernel's command line says:
# `lan0` the private network between the machines, `ctl0` the way in from the host.
set -eu
lan4='' lan6=''
read -r words < /proc/cmdline
for word in $words; do
  case $word in
    zvolt.lan4=*) lan4=${word#*=} ;;
    zvolt.lan6=*) lan6=${word#*=} ;;
  esac
done
for card in /sys/class/net/*; do
  name=${card##*/}
  read -r mac < "$card/address"
  case $mac in
    52:54:00:77:00:*) lan=$name ;;
    52:54:00:77:01:*) ctl=$name ;;
  esac
done
# The lab gives each address once; waiting to detect a duplicate only delays the boot.
echo 0 > "/proc/sys/net/ipv6/conf/$lan/accept_dad"
echo 0 > "/proc/sys/net/ipv6/conf/$lan/accept_ra"
echo 1 > "/proc/sys/net/ipv6/conf/$ctl/disable_ipv6"
ip -batch - <<BATCH
link set lo up
link set $lan name lan0
link set $ctl name ctl0
address add $lan4 dev lan0
address add 10.0.2.15/24 dev ctl0
link set lan0 up
link set ctl0 up
address add $lan6 dev lan0 nodad
BATCH
